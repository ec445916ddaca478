"""Shares of a batch, without processes: rows, random numbers, batches; and what is refused."""

import itertools
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import chain

import pytest
import torch
import torch.distributed as dist
from processes import free_port
from run_cases import STEPS, tiny
from torch import nn

from widemargin import InputError
from widemargin.config.checkpoint import load_checkpoint
from widemargin.core import randomness
from widemargin.core.batch_share import share_of, sharing
from widemargin.distributed.group import LIMIT, Waiting, connect, fresh_part
from widemargin.distributed.sync_batch_norm import share_batch_norms
from widemargin.training import run_folder, train


@pytest.mark.parametrize("processes", [2, 3, 8])
@pytest.mark.parametrize("total", [1, 2, 7, 8, 9, 64])
def test_shares_are_the_batch(total: int, processes: int) -> None:
    found = [share_of(total, rank=rank, processes=processes) for rank in range(processes)]
    rows = [list(range(total))[share.rows] for share in found]
    if total < processes:
        assert rows == [list(range(total))] * processes
    else:
        assert list(chain(*rows)) == list(range(total))
        assert max(map(len, rows)) - min(map(len, rows)) <= 1
    assert sum(len(part) * share.weight for part, share in zip(rows, found, strict=True)) == pytest.approx(total)


def test_random_numbers_for_another_batch_are_refused() -> None:
    with (
        sharing(share_of(7, rank=0, processes=2)),
        pytest.raises(InputError, match="random numbers for 6 samples where this process has 3 of a batch of 7"),
    ):
        randomness.normal((6, 2), generator=randomness.fresh(), dtype=torch.float32)


class OwnNorm(nn.BatchNorm2d):
    """Somebody's own."""


@pytest.mark.parametrize(
    ("norm", "reason"),
    [
        (OwnNorm(3), "OwnNorm: a batch norm of its own kind cannot be synchronized between processes"),
        (nn.BatchNorm2d(3, track_running_stats=False), "BatchNorm2d: a batch norm without running statistics"),
    ],
)
def test_batch_norms_that_cannot_be_synchronized_are_refused(norm: nn.Module, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        share_batch_norms(nn.Sequential(norm))


@pytest.mark.parametrize(("sync_bn", "option"), [(True, "--sync-bn"), (False, "--no-sync-bn")])
def test_an_option_for_several_processes_is_refused_in_one(tmp_path, sync_bn: bool, option: str) -> None:
    with pytest.raises(InputError, match=f"^{option} has no effect in a process alone"):
        train(tiny(), out=tmp_path / "run", device="cpu", sync_bn=sync_bn)
    assert not (tmp_path / "run").exists()


def test_checkpoints_in_mid_epoch(tmp_path, monkeypatch) -> None:
    saves, saved = [], run_folder.save_checkpoint

    def noted(path, checkpoint, previous=None):
        saved(path, checkpoint, previous)
        if path.name == "last.safetensors":
            saves.append((checkpoint.description.epoch, checkpoint.description.step))

    monkeypatch.setattr(run_folder, "save_checkpoint", noted)
    train(tiny(), out=tmp_path / "often", device="cpu", checkpoint_every=2)
    assert saves == [(0, STEPS - 2), (1, 0), (1, STEPS - 2), (2, 0)]
    assert load_checkpoint(tmp_path / "often" / "last.safetensors").description.epoch == 2
    with pytest.raises(InputError, match="--checkpoint-every must be a whole number of at least 1"):
        train(tiny(), out=tmp_path / "never", device="cpu", checkpoint_every=0)


def test_a_restarted_process_hears_nothing_of_the_attempt_before() -> None:
    store = dist.HashStore()
    for _ in range(3):  # attempts, on one store as torchrun keeps it
        with ThreadPoolExecutor() as threads:
            parts = list(threads.map(lambda rank: fresh_part(store, rank, 3, Waiting(60.0)), range(3)))
        assert not parts[0].check(["address"])
        parts[0].set("address", "here")
        assert all(part.get("address") == b"here" for part in parts)


@pytest.mark.parametrize(
    ("rank", "come", "told"),
    [
        (0, (), "1 of 3 processes have come, missing: 1, 2"),
        (0, (2,), "2 of 3 processes have come, missing: 1"),
        (2, (), "process 2 of 3 has come and hears nothing from 0"),
    ],
)
def test_who_waits_says_for_whom_and_gives_up(rank: int, come: tuple[int, ...], told: str) -> None:
    store, seconds, said = dist.HashStore(), itertools.count(), []  # every look at the clock is a second later

    def pause(_: float) -> None:
        """What the others do meanwhile: those that come leave a token, and say that they heard its answer."""
        for other in come:
            store.set(f"widemargin/token/{other}", f"of {other}")
            if store.check([f"widemargin/answer/of {other}"]):
                store.set(f"widemargin/heard/{store.get(f'widemargin/answer/of {other}').decode()}/{other}", "yes")

    waiting = Waiting(100.0, now=lambda: float(next(seconds)), pause=pause, tell=said.append)
    with pytest.raises(InputError, match=re.escape(f"{told}; waited 100 s. See that all are started")):
        fresh_part(store, rank, 3, waiting)
    assert said == [f"{told}; waiting for {n} s, at most 100 s ({LIMIT})" for n in (10, 20, 40, 80)]


@pytest.mark.parametrize("text", ["0", "-3", "soon", "nan", "inf"])
def test_the_time_limit_of_the_rendezvous_is_checked(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(LIMIT, text)
    with pytest.raises(InputError, match=f"{LIMIT} must be a number of seconds above 0, got '{text}'"):
        connect("gloo", patience=timedelta(seconds=1))


def test_a_process_whose_fellow_never_comes_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), LIMIT: "1"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    with pytest.raises(InputError, match="1 of 2 processes have come, missing: 1; waited"):
        connect("gloo", patience=timedelta(hours=2))
