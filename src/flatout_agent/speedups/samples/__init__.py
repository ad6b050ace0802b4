"""Samples and their order: cached samples, and indices requested late."""
