"""flatout.train_step and flatout.find_batch_size: the whole training step."""
