"""Runs a node, imports an artifact, collects garbage and sends events about a run to other systems."""
