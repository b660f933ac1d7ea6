"""Commands that train a recipe several times, with other settings or seeds, and compare the models: `loam sweep` and `loam decide`."""
