import pytest
import torch


    yield
    torch.set_num_threads(before)
