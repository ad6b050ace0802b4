"""Tuning: trials in, a plan out. Predictions give the order, measurements the decision."""
