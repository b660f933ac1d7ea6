"""Questions about several trainings of a recipe: what they share, how large they are, what their values decide and predict."""
