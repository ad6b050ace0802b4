"""LOOP: the training loop does what it need not do."""
