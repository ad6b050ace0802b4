"""The whole step as one CUDA graph."""
