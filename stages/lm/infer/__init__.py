"""Conversion to and from Hugging Face models, generation and scoring."""
