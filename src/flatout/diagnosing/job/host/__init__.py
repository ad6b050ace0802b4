"""HOST: the host is too slow for the device, or computes too slowly itself."""
