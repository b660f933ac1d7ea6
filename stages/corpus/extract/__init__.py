"""The stage extract: from records to pages of text."""
