"""One process of the user's program: what is started, how it is followed, and what it records."""
