"""ENV: drivers, containers, the system's limits, and the Python and torch that are used."""
