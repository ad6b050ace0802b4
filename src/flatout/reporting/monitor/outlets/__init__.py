"""Outlets: the frames of a monitor as other tools want them, all from one table of figures.

Each outlet is a context manager with `tell(frame)`, which returns at once and raises nothing.
"""
