"""Finished jobs of ``reproduce``, kept small enough to commit, and a page made of them alone."""
