"""The core of the pipeline: the contract of a stage, the artifact store, the index, the tables and the runner."""
