"""Loader workers: whether they are safe to start, and keeping them."""
