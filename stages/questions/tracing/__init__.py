"""Traces a document through the pipeline: what each stage decided about it and why, and the training steps that read it."""
