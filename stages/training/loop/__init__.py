"""What a rank does: the training loop, its step, and forward passes without training."""
