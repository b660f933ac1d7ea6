"""The trainer, with its engine, optimizer, schedule, checkpoints, ranks and metrics."""
