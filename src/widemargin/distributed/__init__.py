"""Several processes that share the training of one run, or one evaluation."""
