"""Tuning: trials in, a plan out. Predictions set the order, measurements decide."""
