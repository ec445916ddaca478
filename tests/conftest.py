"""For every test: one torch thread (networks are tiny, and bits depend on it), and ``oracles`` importable.

And the usual handlers of signals, which children inherit: a job in the background may be started with some ignored.
"""

import signal
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)
