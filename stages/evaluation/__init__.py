"""From weights to figures: the stages export, evaluate, contamination and report, and what they share."""
