"""Several processes on this machine that train one job together."""
