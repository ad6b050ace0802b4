"""Attention that a program writes out, recognised and handed to the fused kernels."""
