"""An objective that in mid-epoch kills the last of several processes, once, or is refused; it counts its steps."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from widemargin import InputError
from widemargin.attacks import PGD
from widemargin.objectives import OBJECTIVES, Adversarial

STEP = 7
"""In which it dies: the third of the second epoch."""


@dataclass(frozen=True, kw_only=True)
class Dying(Adversarial):
    """Adversarial training until then."""

    attack: PGD

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Count, perhaps die, else go on as usual."""
        log = os.environ.get("DYING_LOG")
        if log is not None:
            restarts, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
            path = Path(f"{log}-{restarts}-{rank}")
            done = int(path.read_text()) if path.exists() else 0
            path.write_text(str(done + 1))
            if restarts == "0" and rank == "1" and done + 1 == STEP:
                if "DYING_REFUSES" in os.environ:
                    raise InputError("the seventh step is refused")
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(*args, **options)


OBJECTIVES["dying"] = Dying
