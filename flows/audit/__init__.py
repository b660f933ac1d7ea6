"""Replay and blame: repeats recorded steps to check them. Only execute and the command line import it."""
