"""The learning-rate schedules, one file each."""
