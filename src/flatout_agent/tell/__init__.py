"""What the process tells the host: records, the pulse, stacks."""
