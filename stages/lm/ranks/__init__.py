"""What the ranks of a job and their launcher tell each other: how far each rank is, whether to stop, and from which snapshot to continue."""
