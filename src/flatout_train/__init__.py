"""The library: what a hand-written training loop needs to use all of the hardware.

Available as `flatout.<name>`. It owns the whole step, so it can do what no injection can. It needs
the standard library and torch (2.6 or newer); optional packages are named where they are used.
"""
