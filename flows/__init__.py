"""Decides what runs when: the pipeline as data, the Prefect flows, and the command line."""
