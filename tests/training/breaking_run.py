"""A run with the breaking objective, for torchrun: CONFIG OUT stop|skip."""

import sys
from pathlib import Path

from breaking import Breaking

from widemargin.config.toml import read_toml
from widemargin.errors import InputError
from widemargin.objectives import OBJECTIVES
from widemargin.training import train

OBJECTIVES["breaking"] = Breaking

if __name__ == "__main__":
    config, out, choice = sys.argv[1:]
    try:
        train(read_toml(Path(config)), out=Path(out), on_nonfinite=choice, device="cpu")
    except InputError as error:
        print(f"refused: {error}", flush=True)
