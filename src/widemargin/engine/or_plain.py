"""A compiled function that gives way to the plain one, once and for all, if it does not compile."""

from collections.abc import Callable

from torch import Tensor

Function = Callable[[Tensor], Tensor]
Say = Callable[[str, str], None]
"""(what it is about, a sentence)."""


class OrPlain:
    """Calls ``compiled`` until that fails to compile, and says so through ``say``."""

    def __init__(self, compiled: Function, plain: Function, name: str, say: Say) -> None:
        self._now, self._plain, self._name, self._say = compiled, plain, name, say

    def __call__(self, x: Tensor) -> Tensor:
        """The function's result."""
        try:
            return self._now(x)
        except RuntimeError as error:
            if not does_not_compile(error):
                raise
            self._now = self._plain
            reason = str(error).strip().splitlines()[0]
            self._say(self._name, f"the {self._name} pass does not compile ({reason}); it runs uncompiled")
            return self._plain(x)


def does_not_compile(error: Exception) -> bool:
    """Whether the compiler gave up, its own failures (no C++ compiler, a GPU too old) included."""
    from torch._dynamo.exc import TorchDynamoException  # here: it brings torch's tracers, a second to import

    return isinstance(error, TorchDynamoException)
