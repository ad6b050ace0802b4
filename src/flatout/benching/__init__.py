"""Ceilings: the most that this hardware was measured to do."""
