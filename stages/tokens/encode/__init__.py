"""The stage encode: from text to files of ids."""
