"""The design of pages: style sheet, charts, the body of the report."""
