"""Ceilings: what this hardware was measured to do at most."""
