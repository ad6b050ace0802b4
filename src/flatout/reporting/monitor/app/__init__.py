"""The monitor as an application for the terminal, with textual (extra `[monitor]`).

Without textual `reporting.monitor.live_screen` shows the same with fewer keys.
"""
