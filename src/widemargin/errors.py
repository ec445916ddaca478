"""What widemargin raises when a person can put it right.

The command line prints these as one line and exits with 2; anything else is a bug of ours and keeps its traceback.
"""


class InputError(ValueError):
    """Wrong input: the message names the field, the value and the remedy."""


class WidemarginWarning(UserWarning):
    """Something a person should know, though the work goes on."""
