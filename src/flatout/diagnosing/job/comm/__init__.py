"""COMM: the processes of a job wait for each other or for the network."""
