"""The data flow of two consecutive steps, followed while they run, and its findings."""
