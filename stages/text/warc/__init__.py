"""Functions from the bytes of a WARC file to the text of a page."""
