"""The contract: stage, artifact, manifest, key, runner, recipe, shards, lineage, errors."""
