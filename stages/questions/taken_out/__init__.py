"""Takes an exported model out of a home: its folder with a model card, and with a GGUF file on request."""
