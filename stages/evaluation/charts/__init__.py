"""Charts and the theme of pages."""
