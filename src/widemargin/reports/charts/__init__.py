"""Charts as SVG that stands inside a page: colors come from the page's style, so they follow light and dark."""
