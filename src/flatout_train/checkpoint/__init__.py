"""flatout.Checkpoint: what a training needs to go on, saved and found again."""
