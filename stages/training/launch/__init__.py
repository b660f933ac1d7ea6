"""The ranks of a job: their launcher, their entry point, and what they tell each other: events, how far each is, whether to stop."""
