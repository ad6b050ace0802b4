"""Ceilings: the limits of this hardware. One family of kernels per file.

A family has `kernels(setup) -> list[Kernel]`: those that make sense on its devices. Each Kernel is
measured by itself, size after size, and reported as soon as it is known; `__main__` runs them as a
program in the user's interpreter. `timing` explains how times are taken.
"""
