"""What README promises to somebody with files of their own: `make test-newcomer`."""
