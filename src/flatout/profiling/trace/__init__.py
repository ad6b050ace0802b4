"""Kineto traces: read them, and attribute each step's time."""
