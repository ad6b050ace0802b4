"""Installing: the commands and files that put the right software on a machine. Only `apply` runs
anything; everything else is text made from facts.
"""
