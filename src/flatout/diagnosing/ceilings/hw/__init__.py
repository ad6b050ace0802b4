"""HW: hardware that is slower than its data sheet, or than its twin."""
