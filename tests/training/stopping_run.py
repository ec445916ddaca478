"""A run on a GPU, deterministic, that a signal asks to stop after so many steps: CONFIG FOLDER ENGINE STEPS."""

import signal
import sys
from itertools import count
from pathlib import Path

from widemargin.recipes import find_recipe
from widemargin.training import Stop, train, trainer


def main(config: str, folder: str, engine: str, steps: int, device: str = "cuda") -> None:
    stop, taken, set_learning_rate = Stop(), count(1), trainer.set_learning_rate

    def counted(*arguments: object) -> None:
        set_learning_rate(*arguments)
        if next(taken) == steps:
            stop.received = signal.SIGTERM

    trainer.set_learning_rate = counted
    options = {"engine": engine, "stop": stop, "deterministic": True}
    train(find_recipe(config).config, out=Path(folder), device=device, **options)


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]), *sys.argv[5:])
