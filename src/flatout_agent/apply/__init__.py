"""The boosts that a plan names, put on and accounted for."""
