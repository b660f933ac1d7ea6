"""Shows how a model learns, with the numbers of a run: one step, updates of one weight, a slice of the loss surface, what changed."""
