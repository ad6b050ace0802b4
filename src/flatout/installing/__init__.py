"""Installing: the commands and files that put the right software on a machine. Nothing is run here
but by `apply`; everything else is text made from facts.
"""
