"""WARC and HTTP: reads and writes records."""
