"""The code of the artefacts: `frame.py` and the file of a backend together are its `load.py`.

Each file defines `start(folder, options, threads)`, which returns a function from a list of arrays
to the list of output arrays. It may use the standard library, numpy and the backend's runtime, all
imported inside functions, and nothing from flatout: it also runs where flatout is not installed.
`serve.py` is not part of it, but an example put beside it.
"""
