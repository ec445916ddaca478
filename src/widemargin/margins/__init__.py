"""How far the decision boundary is."""

from widemargin.margins.effective import effective_margin
from widemargin.margins.summary import MarginSummary, summarize

__all__ = ["MarginSummary", "effective_margin", "summarize"]
