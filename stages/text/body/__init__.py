"""Finds the body of a page among its visible lines: lines, the keys that hosts are counted by, rules, and body text as Markdown."""
