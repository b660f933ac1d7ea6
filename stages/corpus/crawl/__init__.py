"""The stage crawl, its crawler and its site of documentation."""
