"""The directory of a run, and reading it back."""
