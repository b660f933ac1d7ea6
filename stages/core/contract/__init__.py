"""The contract: what a stage declares, and how errors and JSON are read and shown."""
