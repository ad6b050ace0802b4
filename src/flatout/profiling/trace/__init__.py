"""Kineto traces: read them, and say where each step's time went."""
