"""Model, losses, data order, trainer and checkpoints. Nothing here imports core, text or Prefect."""
