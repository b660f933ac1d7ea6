"""Shows a run in Prefect: what happens to its nodes goes through a pipe to a process that repeats it as a flow with its tasks."""
