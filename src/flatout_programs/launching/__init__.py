"""Files that `flatout launch` gives to an engine: copied, kept by the user, never imported."""
