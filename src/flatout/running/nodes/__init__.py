"""Several machines that train one job together: each runs the same command."""
