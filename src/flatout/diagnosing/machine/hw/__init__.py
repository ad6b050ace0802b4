"""HW: GPUs, their links and their settings, processor and memory."""
