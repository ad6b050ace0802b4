"""Tuning: trials in, a plan out. The order comes from predictions, the decision from measurement."""
