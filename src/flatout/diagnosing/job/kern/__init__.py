"""KERN: kernels and operators take longer than they need to."""
