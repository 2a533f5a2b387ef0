"""What can be done with a finished run."""
