"""What finds the model, the optimizer, the loader and the steps of the running program."""
