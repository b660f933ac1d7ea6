"""The stage boilerplate: removes the lines that pages of a host repeat."""
