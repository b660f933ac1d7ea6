"""Trackers: programs that show the curves of a training while it runs."""
