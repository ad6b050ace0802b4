"""Start the user's program with the agent inside, follow it, end it, collect its records."""
