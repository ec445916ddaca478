"""Square, the fourth part of AutoAttack: black-box random search; in Linf, squares of one color are moved by 2 eps.

It begins with stripes of +-eps. A proposal moves a square, of a side that shrinks from step to step, to +-eps a
channel; it is accepted where it lowers the margin z_y - max z_other (Andriushchenko et al., 2020).

The random numbers and the arithmetic are the official code's, and so are the accepted proposals. What is different is
the work. Proposals are the same for all images and do not depend on what was found, so each image goes through them at
its own pace: one that would change no pixel, or that was tried since the image last changed, is not tried; and where
few images are left, several proposals each go through the model together, of which those after the first accepted one
are tried again.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

Margins = Callable[[Tensor, Tensor], Tensor]
"""(x, y) -> (B,): the margin, not above zero where the image counts as won."""
SHRINKS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""After so many proposals the share of pixels in a square is halved."""


@dataclass(frozen=True)
class _Proposals:
    """The squares, in the order in which they are tried."""

    columns: Tensor
    """(Q, C, H, 1): what is added to the rows of pixels that a square covers, by channel."""
    across: Tensor
    """(Q, 1, 1, W): 1 for the columns of pixels that it covers, 0 elsewhere."""
    same_before: "np.ndarray[Any, Any]"
    """(Q,): the last one before that is the same; -1 where there is none."""

    def added(self, index: Tensor) -> Tensor:
        """(B, C, H, W): what those add to an image."""
        return self.columns.index_select(0, index) * self.across.index_select(0, index)


@dataclass(frozen=True, kw_only=True)
class SquareLinf:
    """Square in Linf, for images (N, C, H, W) that the model classifies correctly."""

    eps: float
    queries: int = 5000
    share: float = 0.8
    """Of the pixels in the first squares."""

    def __call__(
        self, margins: Margins, x: Tensor, y: Tensor, *, generator: torch.Generator, at_once: int = 250
    ) -> tuple[Tensor, Tensor]:
        """(B,) bool, where the margin is not above zero any more, and the images; those of x elsewhere."""
        count, channels, _, width = x.shape
        stripes = torch.sign(2 * torch.rand(count, channels, 1, width, generator=generator) - 1).to(x.device)
        best = torch.clamp(x + self.eps * stripes, 0.0, 1.0)
        smallest = torch.cat([margins(*pair) for pair in zip(best.split(at_once), y.split(at_once), strict=True)])
        won = ~(smallest > 0)
        if not bool((smallest < 0).all()):
            proposals = self._drawn(x, generator)
            waiting = (~won).nonzero()[:, 0]
            self._search(margins, x, y, best, smallest, waiting, proposals, at_once)
            won = ~(smallest > 0)
        images = x.clone()
        images[won] = best[won]
        return won, images

    def _drawn(self, x: Tensor, generator: torch.Generator) -> _Proposals:
        """All proposals, from the numbers that the official code would draw one by one."""
        channels, height, width = x.shape[1:]
        numbers = torch.rand(self.queries, 2 + channels, generator=generator)
        side = torch.tensor([self._side(index, height, width) for index in range(self.queries)])
        corner = [((size - side).float() * numbers[:, axis]).long() for axis, size in enumerate((height, width))]
        down, across = (
            ((place >= first.unsqueeze(1)) & (place < (first + side).unsqueeze(1))).float()
            for place, first in zip((torch.arange(height), torch.arange(width)), corner, strict=True)
        )
        signs = torch.sign(2 * numbers[:, 2:] - 1)
        last: dict[tuple[float, ...], int] = {}
        same_before = []
        for index, key in enumerate(torch.stack([*corner, side, *signs.T], dim=1).tolist()):
            same_before.append(last.get(tuple(key), -1))
            last[tuple(key)] = index
        columns = (2.0 * self.eps * signs).unsqueeze(2) * down.unsqueeze(1)
        return _Proposals(
            columns.unsqueeze(3).to(x.device), across[:, None, None, :].to(x.device), np.array(same_before)
        )

    def _side(self, index: int, height: int, width: int) -> int:
        share = self.share / 2 ** sum(index > bound for bound in SHRINKS)
        return min(max(round(math.sqrt(share * height * width)), 1), height, width)

    def _search(
        self,
        margins: Margins,
        x: Tensor,
        y: Tensor,
        best: Tensor,
        smallest: Tensor,
        waiting: Tensor,
        proposals: _Proposals,
        at_once: int,
    ) -> None:
        """Go through the proposals with the images of those rows; ``best`` and ``smallest`` are written into."""
        low, high = (x - self.eps).clamp_min(0.0), (x + self.eps).clamp_max(1.0)
        least = smallest.cpu().numpy()
        following, accepted = np.zeros(len(x), dtype=int), np.full(len(x), -1)
        worth = 1.0  # the share of proposals that had to be tried, of late
        queue = waiting.cpu().numpy()
        while len(queue):
            rows = queue[:at_once]
            ahead = max(1, int(at_once / (len(rows) * worth)))
            index = following[rows][:, None] + np.arange(ahead)
            known = proposals.same_before[index.clip(max=self.queries - 1)] > accepted[rows][:, None]
            slot, offset = ((index < self.queries) & ~known).nonzero()
            base = torch.from_numpy(rows[slot]).to(x.device)
            added = proposals.added(torch.from_numpy(index[slot, offset]).to(x.device))
            before = best.index_select(0, base)
            moved = torch.clamp(before + added, low.index_select(0, base), high.index_select(0, base))
            changing = ((moved - before).flatten(1).abs().amax(1) > 0).nonzero()[:, 0] if len(slot) else base
            following[rows] = np.minimum(following[rows] + ahead, self.queries)
            if len(changing):
                moved, base = moved.index_select(0, changing), base.index_select(0, changing)
                margin = margins(moved, y.index_select(0, base)).cpu().numpy()
                at = changing.cpu().numpy()
                slot, offset = slot[at], offset[at]
                better = (margin < least[rows[slot]]) | ~(margin > 0)
                _, first = np.unique(slot[better], return_index=True)
                taken = better.nonzero()[0][first]
                winners = rows[slot[taken]]
                best[torch.from_numpy(winners).to(x.device)] = moved[torch.from_numpy(taken).to(x.device)]
                least[winners], accepted[winners] = margin[taken], index[slot[taken], offset[taken]]
                following[winners] = accepted[winners] + 1
            worth = max(0.9 * worth + 0.1 * len(changing) / (len(rows) * ahead), 1 / at_once)
            remaining = (following[rows] < self.queries) & (least[rows] > 0)
            if not remaining.all():
                queue = np.concatenate([rows[remaining], queue[at_once:]])
        smallest.copy_(torch.from_numpy(least))
