"""HW: what gives less than its data sheet says, or than its twin."""
