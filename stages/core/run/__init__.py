"""Running a node, importing an artifact, collecting garbage, telling others of a run."""
