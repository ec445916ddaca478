"""Training objectives: (nets, x, y) -> the loss of each sample."""

from widemargin.objectives.adversarial import Adversarial
from widemargin.objectives.free import Free
from widemargin.objectives.ikl import Ikl
from widemargin.objectives.lbgat import Lbgat
from widemargin.objectives.mail import Mail
from widemargin.objectives.mart import Mart
from widemargin.objectives.score import Score
from widemargin.objectives.standard import Standard
from widemargin.objectives.trades import Trades

OBJECTIVES: dict[str, type] = {
    "standard": Standard,
    "adversarial": Adversarial,
    "trades": Trades,
    "mart": Mart,
    "mail": Mail,
    "lbgat": Lbgat,
    "score": Score,
    "ikl": Ikl,
    "free": Free,
}

__all__ = ["OBJECTIVES", "Adversarial", "Free", "Ikl", "Lbgat", "Mail", "Mart", "Score", "Standard", "Trades"]
