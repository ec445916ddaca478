"""Weights & Biases offline: what its files hold, by its own reader."""

import json
import struct

import pytest

from widemargin.config.toml import to_dict

wandb = pytest.importorskip("wandb", reason="wandb is large; its extra is not in the dev environment")
from wandb.proto import wandb_internal_pb2  # noqa: E402

from widemargin.integrations import make_tracker  # noqa: E402

BLOCK, HEADER = 32768, struct.Struct("<IHB")


def records(file):
    """The file is a log of LevelDB's: 7 bytes of its own, then blocks of pieces (checksum, length, whole or part)."""
    data, place, parts = file.read_bytes(), 7, b""
    while place + HEADER.size <= len(data):
        if BLOCK - place % BLOCK < HEADER.size:
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = HEADER.unpack_from(data, place)
        parts += data[place + HEADER.size : place + HEADER.size + length]
        place += HEADER.size + length
        if kind in (1, 4):  # whole, or the last part
            yield wandb_internal_pb2.Record.FromString(parts)
            parts = b""


def history(record):
    items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
    return record.history.step.num, items


def test_offline_a_run_that_goes_on_appends_and_repeats_nothing(tiny, tmp_path, train_in_two_calls, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    out = tmp_path / "run"
    result = train_in_two_calls(out, lambda: [make_tracker("wandb", out)])
    files = sorted((out / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    found = [record for file in files for record in records(file)]
    runs = [record.run for record in found if record.HasField("run")]
    assert {run.display_name for run in runs} == {"tiny/st"}
    assert {run.project for run in runs} == {"widemargin"}
    assert {run.run_id for run in runs} == {json.loads((out / "wandb.json").read_text())["id"]}
    config = {item.key: json.loads(item.value_json) for item in runs[0].config.update}
    assert config["emr"] == to_dict(tiny())["emr"]
    lines = [history(record) for record in found if record.HasField("history")]
    assert [step for step, _ in lines] == [1, 2, 3]
    for (_, items), line in zip(lines, result.metrics, strict=True):
        assert items["loss"] == pytest.approx(line["loss"])
        assert items["validation_robust"] == pytest.approx(line["validation_robust"])
        assert any(name.startswith("margins") for name in items)
        assert any(name.startswith("clean, adversarial") for name in items)
