"""Train image classifiers whose decision boundary is far from the data, measure how far, and prove it."""

__version__ = "0.1.0"
