"""Ids of a text, and checks that they are right."""
