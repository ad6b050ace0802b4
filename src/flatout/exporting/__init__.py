"""From a captured model to its fastest verified build.

capture folder -> candidates -> build | verify | time, each in its own process -> choice -> artefact
"""
