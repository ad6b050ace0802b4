"""The history of a finished run, drawn from its frames: a page and a few lines."""
