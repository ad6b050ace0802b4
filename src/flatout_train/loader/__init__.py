"""flatout.loader: batches on the device before the step asks for them."""
