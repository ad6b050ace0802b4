"""Measuring: one trial, one duel; the agent's records in, figures out."""
