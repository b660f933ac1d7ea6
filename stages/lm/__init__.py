"""Pure torch: model, objectives, data order, trainer, checkpoints."""
