"""From a model that was captured to the fastest verified build of it.

capture folder -> candidates -> build | verify | time, each in its own process -> choice -> artefact
"""
