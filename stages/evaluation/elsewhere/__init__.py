"""Stages that load a whole model, run on a machine of runtime.launcher: what is sent there, the process, and what its driver does."""
