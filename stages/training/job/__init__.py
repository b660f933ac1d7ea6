"""Settings of a training, and the job that the ranks get."""
