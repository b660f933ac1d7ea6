"""Pure torch: model, losses, data order, trainer, checkpoints."""
