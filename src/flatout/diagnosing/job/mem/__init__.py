"""MEM: memory is short, wasted or lost."""
