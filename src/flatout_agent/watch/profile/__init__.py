"""The watch of `flatout profile`: a few steps recorded, and what was seen around them."""
