"""Which version goes with which: tables in TOML, each entry with its source and date.

What is not in the tables is not known: the functions answer None, and never guess.
"""
