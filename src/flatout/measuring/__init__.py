"""Measuring: one trial, one duel; records of the agent in, figures out."""
