"""The monitor's frames, drawn in the terminal."""
