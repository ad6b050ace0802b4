"""The part of flatout that lives in the user's process: standard library and torch, nothing else.

It imports nothing of the host package `flatout` and never raises into the user's program.
"""
