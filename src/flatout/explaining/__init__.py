"""Find signatures in texts of any size, and say which one is the root cause."""
