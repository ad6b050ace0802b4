"""Running jobs and their machines, watched: samples -> history -> alerts -> frames."""
