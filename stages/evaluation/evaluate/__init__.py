"""The stage evaluate: scores of tasks and texts."""
