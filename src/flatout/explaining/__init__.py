"""Signatures at work: find them in texts of any size, and say which one is the root cause."""
