"""Trainings that are made again: to compare them with their record, and to find the documents that cause what a step showed."""
