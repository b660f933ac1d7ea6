"""Runs the nodes of a pipeline that do not depend on each other at once: what fits (room.py), and the loop that starts and ends them (node_loop.py)."""
