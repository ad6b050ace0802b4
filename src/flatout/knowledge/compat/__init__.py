"""Which versions are compatible: tables in TOML, each entry with its source and date.

For anything not in the tables the functions return None; they never guess.
"""
