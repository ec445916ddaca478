"""For every test: one torch thread (networks are tiny, and bits depend on it), and ``oracles`` importable."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)
