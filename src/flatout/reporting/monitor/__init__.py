"""What a monitor knows, drawn: frames in the terminal."""
