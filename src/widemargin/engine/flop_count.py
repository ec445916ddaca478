"""FLOPs of what a thread computes, by torch's own formulas.

Torch's ``FlopCounterMode`` also follows modules, through hooks that every thread of the process then runs.
"""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class FlopCount(TorchDispatchMode):
    """Adds up the convolutions and matrix products inside a ``with`` block; a multiply-add counts two."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        from torch.utils.flop_counter import flop_registry  # a second to import

        super().__init__()  # type: ignore[no-untyped-call]
        self.total: float = 0.0
        self._formulas: dict[Any, Any] = flop_registry

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call it, and count it if it has a formula."""
        del types
        result = func(*args, **(kwargs or {}))
        formula = self._formulas.get(getattr(func, "overloadpacket", None))
        if formula is not None:
            self.total += float(formula(*args, **(kwargs or {}), out_val=result))
        return result
