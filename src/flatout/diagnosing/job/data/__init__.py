"""DATA: the job waits for its data."""
