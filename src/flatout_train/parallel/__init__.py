"""Training one model on several devices: which strategy fits into their memory, and applying it."""
