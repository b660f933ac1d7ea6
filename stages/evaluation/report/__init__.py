"""The stage report: one page of a run."""
