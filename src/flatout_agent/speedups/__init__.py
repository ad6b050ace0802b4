"""The engines that boosts and the library share, and how they take hold of a program."""
