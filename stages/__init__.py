"""The stages of the pipeline: one module per stage, and the libraries that they use."""
