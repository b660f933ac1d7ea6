"""Tables and formats of documents and of their lines."""
