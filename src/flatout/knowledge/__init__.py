"""Knowledge: what flatout knows without looking at this machine, and the typed doors to it."""
