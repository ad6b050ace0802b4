"""From a request to a job on a cluster: checked, shown, written, submitted, followed.

request -> check -> costs, confirmed -> files in .flatout/launch/<name>-<time>/ -> submit -> follow
"""
