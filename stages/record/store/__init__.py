"""The store: artifacts, keys, manifests, names, leases and run records on disk, and who may write them."""
