"""Installing: commands and files that put the right software on a machine. Only `apply` runs
anything; the rest is text made from facts.
"""
