"""Artifacts, keys, manifests, names, leases and run records: what stands on disk and who may write it."""
