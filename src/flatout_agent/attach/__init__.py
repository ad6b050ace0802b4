"""Ways to put something of ours around what the program has, and to take it back."""
