"""From a training stage's inputs to its ranks, and from what they write to an artifact."""
