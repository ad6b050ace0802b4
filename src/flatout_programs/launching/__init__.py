"""Files that `flatout launch` gives to an engine: copied, the user's to keep, never imported."""
