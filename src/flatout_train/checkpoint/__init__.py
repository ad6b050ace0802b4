"""flatout.Checkpoint: everything that training needs to resume, saved and loaded."""
