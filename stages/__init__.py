"""What runs: one module per stage, and the libraries below them."""
