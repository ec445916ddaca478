"""The page: one module for each section, and a template for how it looks."""
