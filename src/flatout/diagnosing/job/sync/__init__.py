"""SYNC: the host waits for the device."""
