"""The server of an artefact folder: `serve.py`, and what it reads, in `serving/` beside it."""
