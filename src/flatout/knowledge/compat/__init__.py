"""Which versions are compatible: tables in TOML, each entry with its source and date.

What is not in the tables is unknown: the functions return None, and never guess.
"""
