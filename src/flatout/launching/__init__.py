"""Turn a request into a job on a cluster: check, show, write, submit and follow it.

request -> check -> costs, confirmed -> files in .flatout/launch/<name>-<time>/ -> submit -> follow
"""
