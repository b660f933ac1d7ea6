"""Functions that several parts of text use: compiled loops, Unicode form NFC, hash sampling, estimates, statistical tests."""
