"""Lets a person talk to an exported model: which model, what it is given, and the answer as it is written."""
