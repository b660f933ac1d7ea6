"""When things run: the road as data, the Prefect flows, the command line."""
