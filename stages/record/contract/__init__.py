"""The contract: what a stage declares, what a recipe may contain, and how errors, JSON and YAML are read and shown."""
