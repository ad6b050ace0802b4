"""What the program `export` does in the user's Python: read a capture, build, verify, time.

torch and numpy are imported inside functions: a process that serves a build without torch never
loads it.
"""
