"""Many runs: a whole table of the paper, a grid of settings."""
