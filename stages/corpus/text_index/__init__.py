"""The stage text_index: an index that finds any text of the corpus."""
