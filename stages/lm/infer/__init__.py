"""Conversion to and from Hugging Face models, generation, scoring."""
