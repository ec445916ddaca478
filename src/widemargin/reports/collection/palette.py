"""The colors of the pictures: a setting has the same one in every panel of every picture.

The larger the weight decay, the darker its color, and neighbors differ in hue as well. Averaged weights have a lighter
tone of their own run's color.
"""

LIME, TEAL, RED, GRAY, PURPLE, INK = "#b8d957", "#35b5a6", "#d1495b", "#6b6e73", "#5f4b8b", "#2a1740"
YELLOW, BROWN, BLUE = "#edae49", "#9c5a1a", "#1768ac"
LIGHT_RED, LIGHT_BLUE = "#eba6b0", "#7fb8e6"

DECAY_COLORS = {"0": LIME, "0.0001": TEAL, "0.0005": RED, "0.001": GRAY, "0.01": PURPLE, "0.1": INK}
