"""Checkpoints: files of weights and optimizer state, and the snapshots from which a job continues."""
