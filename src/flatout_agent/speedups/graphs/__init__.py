"""Calls recorded as CUDA graphs and replayed."""
