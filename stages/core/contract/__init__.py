"""What a stage declares, what a recipe may say, and how errors, JSON and YAML are read and shown."""
