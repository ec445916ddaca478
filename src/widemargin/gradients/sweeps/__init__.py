"""Penalties on input gradients by sweeps over a tape of the layers that a model ran, without double backward.

``tape`` records a model's forward and sweeps it; ``rules`` says which layer a call of a torch operator is; ``layers``
are those whose sweeps are written by hand, ``operators`` all others, by torch's own derivatives of them.
"""
