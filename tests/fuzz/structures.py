"""Files that are well formed and say strange things: what lies behind the parsers is reached only by these.

A strange file is a real one in which a few values, keys or sizes are others.
"""

import io
import json
import struct
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from hypothesis import strategies as st
from readers import IMAGES, SHOWN, checkpoint_bytes, digits, network, sealed_again, shown_folder

from data_files import npy, npy_that_says, zip_of
from widemargin.config.toml import to_dict
from widemargin.recipes import all_recipes

SIZES = st.one_of(st.sampled_from([-1, 0, 1, 2, 3, 28, 2**31, 2**40, 2**62, 2**63 - 1, 2**64]), st.integers(0, 40))
NAMES = st.one_of(
    st.sampled_from(["kind", "images", "fc", "fcs", "mlp", "pgd", "none", "", "8/255"]), st.text(max_size=4)
)
SCALARS = st.one_of(SIZES, st.floats(), st.booleans(), NAMES, st.sampled_from([10**400, -(10**400), 1e308, 1e-320]))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=5,
)
CHANGES = st.lists(
    st.tuples(st.integers(0, 10**6), st.sampled_from(["set", "drop", "rename"]), VALUES, NAMES), min_size=1, max_size=3
)


def changed(table: dict[str, Any], changes: list[tuple[int, str, Any, str]]) -> dict[str, Any]:
    """The table with some of its values, at any depth, set, dropped or renamed."""
    table = json.loads(json.dumps(table))
    for number, what, value, name in changes:
        places = list(_places(table))
        if not places:
            break
        holder, key = places[number % len(places)]
        old = holder.pop(key)
        if what == "set":
            holder[key] = value
        elif what == "rename":
            holder[name] = old
    return table


def _places(table: dict[str, Any]) -> Any:
    for key, value in table.items():
        yield table, key
        if isinstance(value, dict):
            yield from _places(value)


def configurations() -> st.SearchStrategy[bytes]:
    """TOML texts."""
    tables = [to_dict(recipe.config) for recipe in list(all_recipes().values())[::5]]
    return st.builds(lambda table, changes: toml(changed(table, changes)), st.sampled_from(tables), CHANGES)


def toml(table: dict[str, Any]) -> bytes:
    try:
        return tomli_w.dumps(table).encode("utf-8", "surrogatepass")
    except ValueError:  # a number too long to write in decimal
        return b"epochs = 0x" + b"f" * 5000


def descriptions(folder: Any) -> st.SearchStrategy[bytes]:
    """Checkpoints with other descriptions, their checksums made to fit."""
    whole = checkpoint_bytes(folder)
    header, body = split(whole)
    table = json.loads(header["__metadata__"]["widemargin"])

    def make(changes: Any) -> bytes:
        told = json.dumps(changed(table, changes))
        return sealed_again(joined(header | {"__metadata__": {"widemargin": told}}, body))

    return st.builds(make, CHANGES)


def headers(folder: Any) -> st.SearchStrategy[bytes]:
    """Checkpoints with other tensor tables (types, shapes, offsets), their checksums made to fit."""
    header, body = split(checkpoint_bytes(folder))
    return st.builds(lambda changes: sealed_again(joined(changed(header, changes), body)), CHANGES)


def split(whole: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(whole[:8], "little")
    return json.loads(whole[8 : 8 + length]), whole[8 + length :]


def joined(header: dict[str, Any], body: bytes) -> bytes:
    try:
        text = json.dumps(header, separators=(",", ":")).encode()
    except ValueError:  # a number too long to write in decimal
        text = b"{" + b"9" * 5000
    return struct.pack("<Q", len(text)) + text + body


SHAPES = st.one_of(
    st.lists(SIZES, max_size=5).map(tuple),
    st.sampled_from([(IMAGES, 28, 28), (IMAGES,), (0, 28, 28), (IMAGES, 784, 0), (True, 28, 28), (IMAGES, 28, 14, 2)]),
)
TYPES = st.one_of(
    st.sampled_from(["|u1", "<f4", "<f8", "<f2", "<i8", ">i4", "|O", "|V9", "<U9", "|S0", "|b1", "<c8", "<M8[ns]"]),
    st.sampled_from([[("a", "<f4")], ("<f4", (3,)), ("|u1", (0,)), "<f3", "", "O,u1", "5000000000u1"]),
)


def array_headers() -> st.SearchStrategy[bytes]:
    """.npz files whose images say another shape, type and order than they have."""
    labels = npy(np.arange(IMAGES) % 3)

    def make(shape: Any, kind: Any, fortran: bool, cut: int, which: str) -> bytes:
        array = npy_that_says(shape, digits().tobytes()[: max(cut, 0)], kind, fortran=fortran)
        return zip_of({"images.npy": npy(digits()), "labels.npy": labels, which: array})

    names = st.sampled_from(["images.npy", "labels.npy", "num_classes.npy"])
    return st.builds(make, SHAPES, TYPES, st.booleans(), st.one_of(st.just(10**6), st.integers(0, 5000)), names)


def idx_headers() -> st.SearchStrategy[bytes]:
    """idx files of any magic number and any sizes."""
    numbers = st.one_of(st.sampled_from([0x803, 0x801, IMAGES, 28, 0, 2**32 - 1]), st.integers(0, 2**32 - 1))
    return st.builds(
        lambda magic, sizes: struct.pack(f">{1 + len(sizes)}I", magic, *sizes) + digits().tobytes(),
        st.sampled_from([0x803, 0x803, 0x801, 0xD03]),
        st.lists(numbers, min_size=1, max_size=3),
    )


# What the official batches are written with and, now and then, an instruction that has no business there.
_PICKLED = [
    *(b"} ( ] K\x01 M\x00\x0c U\x04data U\x06labels C\x02u1 q\x00 q\x01 h\x00 h\x01").split(b" "),
    *(b"\x85 \x86 \x87 t R b e a u s N \x88 \x94 \x93 0 2 Q \x81 T\xff\xff\xff\x7f r\xff\xff\xff\x7f").split(b" "),
    *(b"cnumpy\nndarray\n cnumpy\ndtype\n cnumpy.core.multiarray\n_reconstruct\n c_codecs\nencode\n").split(b" "),
    *(b"X\x06\x00\x00\x00latin1 cos\nsystem\n \x95\xff\xff\xff\xff\xff\xff\xff\x7f").split(b" "),
]


def pickles() -> st.SearchStrategy[bytes]:
    """Pickle programs of random instructions."""
    return st.lists(st.sampled_from(_PICKLED), max_size=40).map(lambda parts: b"\x80\x02" + b"".join(parts) + b".")


def state_dicts() -> st.SearchStrategy[bytes]:
    """Public files with other names, shapes and kinds of values."""
    real = dict(network().state_dict())
    keys = [*real, "fc.weight", "fc.bias", "conv4.weight", "conv4.bias", "block1.layer.0.conv1.weight", "bn1.weight"]
    keys += ["layer4.0.conv1.weight", "linear.weight", "mu", "sigma", "state_dict", "net"]
    keys += ["module.fcs.0.weight", "fcs.2.weight"]
    small = st.lists(st.integers(0, 9), max_size=4).map(lambda shape: torch.zeros(shape))
    odd = st.sampled_from(
        [
            torch.zeros(1).expand(2**40),
            torch.zeros(1).expand(2**20, 2**20),
            torch.empty(2**50, 7, device="meta"),
            torch.zeros(2**40, 0),
            torch.zeros(3, dtype=torch.complex64),
            torch.zeros(5, 16).to_sparse(),
            torch.zeros(5, 16, dtype=torch.bool),
            torch.full((3,), float("nan")),
            torch.nn.Parameter(torch.zeros(5, 16)),
            {"state_dict": {"net": {}}},
            {1: 2},
            None,
            3,
            "text",
            [torch.zeros(1)],
        ]
    )
    changes = st.dictionaries(st.sampled_from(keys), st.one_of(small, odd), min_size=1, max_size=4)

    def make(more: dict[str, object], dropped: list[str], whole: bool) -> bytes:
        state = {key: value for key, value in real.items() if key not in dropped} if whole else {}
        stream = io.BytesIO()
        torch.save(state | more, stream)
        return stream.getvalue()

    return st.builds(make, changes, st.lists(st.sampled_from(sorted(real)), max_size=2), st.booleans())


def shown_tables(name: str) -> st.SearchStrategy[bytes]:
    """Files of a report (JSON, or a line of it) with other values."""
    with tempfile.TemporaryDirectory() as folder:
        text = (shown_folder(Path(folder) / "shown") / SHOWN[name]).read_text()
    table = json.loads(text.splitlines()[-1] if SHOWN[name].endswith("jsonl") else text)

    def make(changes: Any) -> bytes:
        try:
            return json.dumps(changed(table, changes)).encode("utf-8", "surrogatepass")
        except ValueError:  # a number too long to write in decimal
            return b"{" + b"9" * 5000

    return st.builds(make, CHANGES)


def structures(folder: Any) -> dict[str, tuple[str, Callable[[], st.SearchStrategy[bytes]]]]:
    """Which reader gets which strange files."""
    return {
        "idx, strange headers": ("idx", idx_headers),
        "cifar pickle, random programs": ("cifar pickle", pickles),
        "npz, strange arrays": ("npz", array_headers),
        "run configuration, strange values": ("run configuration", configurations),
        "checkpoint, strange descriptions": ("checkpoint", lambda: descriptions(folder)),
        "checkpoint, strange tensor tables": ("checkpoint", lambda: headers(folder)),
        "public .pt, strange weights": ("public .pt", state_dicts),
        "report, strange configuration": ("report, configuration", configurations),
        **{
            f"report, strange {name}": (f"report, {name}", partial(shown_tables, name))
            for name in ("evaluation", "examples", "metrics", "sweep", "result")
        },
    }
