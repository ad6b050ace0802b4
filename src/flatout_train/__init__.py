"""The library: what a training loop of one's own needs to use all of the hardware.

Reached as `flatout.<name>`. It owns the whole step, so it can do what no injection can. Standard
library and torch (2.6 or newer); what else is used, where it is installed, is named at each use.
"""
