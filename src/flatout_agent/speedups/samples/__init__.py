"""Samples and their order, kept or asked for in another way."""
