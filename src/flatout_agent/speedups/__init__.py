"""What boosts and the library share: the engines, and how they take hold of a program."""
