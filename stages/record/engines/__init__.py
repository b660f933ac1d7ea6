"""Where the shards of a stage run: on worker processes of this machine, or on a cluster."""
