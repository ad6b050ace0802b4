"""One question to a data flow each: its answer is a row of what the host is told."""
