"""A Profile as screen, JSON and HTML."""
