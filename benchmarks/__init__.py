"""How fast a training step is here: measured, counted, and held against the machine and a loop written by hand."""
