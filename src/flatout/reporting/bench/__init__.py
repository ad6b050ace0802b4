"""Ceilings as screen, JSON and progress."""
