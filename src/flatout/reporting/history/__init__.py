"""The history of one run after its end: a page and a few lines, drawn from its frames."""
