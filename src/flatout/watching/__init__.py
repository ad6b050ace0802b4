"""Watching running jobs and their machines: samples -> history -> alerts -> frames."""
