"""When things run: the pipeline as data, the Prefect flows, the command line."""
