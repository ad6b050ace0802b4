"""flatout.train_step: the whole training step."""
