"""Calls that are recorded as CUDA graphs and replayed."""
