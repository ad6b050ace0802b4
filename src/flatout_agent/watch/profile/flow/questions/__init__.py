"""Each module asks a data flow one question; the answer is a row of the report to the host."""
