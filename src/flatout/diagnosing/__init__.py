"""Diagnosing: facts in, Findings out; pure, so a recorded machine is diagnosed like this one."""
