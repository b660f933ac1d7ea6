"""What several rooms of text use: compiled loops, normal form C, hash sampling, estimates."""
