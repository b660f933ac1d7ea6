"""The trainer, with its engine, optimizer, checkpoints, ranks and metrics."""
