"""The process that the agent is in: how it is set up, and what its end leaves."""
