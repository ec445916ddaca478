"""Everything here is tiny: a second thread only costs."""

from collections.abc import Iterator

import pytest
import torch


    yield
    torch.set_num_threads(threads)
