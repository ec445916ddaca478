"""Files that are damaged or made to do harm: each is one line of the page, and the rest is shown as ever."""

import csv
import io
import json
import os
import re
import shutil
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from report_folders import (
    page_of,
    write_checkpoint,
    write_evaluation,
    write_gallery,
    write_result,
    write_run,
    write_sweep,
)
from widemargin import InputError
from widemargin.core.records import Lines, sealed, visible
from widemargin.evaluation.gallery import CLASSES, INFLATED, MOST, read_gallery
from widemargin.report import provenance
from widemargin.report.findings import search

SHARDS = "begun/shards"


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """One of everything, small."""
    folder = tmp_path_factory.mktemp("sound")
    write_run(folder / "run", epochs=3)
    write_checkpoint(folder / "run" / "last.safetensors", "1")
    report = write_evaluation(folder / "e", count=6)
    write_sweep(folder / "sweep")
    write_result(folder / "seed-0")
    shutil.copytree(folder / "e", folder / "begun")
    (folder / "begun" / "report.json").unlink()
    settings = {"attacks": report["attacks"], "eps": [["0.031", 0.031]], "norm": "linf", "seed": 0, "data": "cifar10"}
    (folder / "begun" / "settings.json").write_text(json.dumps(settings))
    (folder / SHARDS).mkdir()
    lines = (folder / "begun" / "examples.jsonl").read_text().splitlines(keepends=True)
    for number in (0, 1):
        text = '{"first": 0}\n' + "".join(lines[3 * number : 3 * number + 3])
        (folder / SHARDS / f"{number:05d}.jsonl").write_text(text)
    return folder


@pytest.fixture
def folder(sound, tmp_path):
    return shutil.copytree(sound, tmp_path / "folder")


def npz(**changes: object) -> bytes:
    """A gallery with other arrays, or without one that is None."""
    stream = io.BytesIO()
    images = np.zeros((2, 3, 4, 4), np.uint8)
    classes = dict.fromkeys(CLASSES, np.arange(2))
    arrays = {"images": images, "adversarial": images, "attack": "fgsm"} | classes | changes
    np.savez_compressed(stream, **{name: array for name, array in arrays.items() if array is not None})
    return stream.getvalue()


def npz_that_claims(shape: tuple, kind: str = "|u1") -> bytes:
    """Its images have a header of their own, and four bytes."""
    told = repr({"descr": kind, "fortran_order": False, "shape": shape}).encode()
    stream = io.BytesIO(npz())
    with zipfile.ZipFile(stream) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["images.npy"] = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(told)) + told + bytes(4)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def broken_zlib() -> bytes:
    """Whole but for the deflated bytes of its first member."""
    content = bytearray(npz(images=np.arange(96, dtype=np.uint8).reshape(2, 3, 4, 4)))
    at = content.index(b"images.npy") + len("images.npy") + 30
    content[at : at + 20] = b"\xff" * 20
    return bytes(content)


def changed(**changes: object):
    """A JSON file with other values."""
    return lambda whole: json.dumps(json.loads(whole) | changes).encode()


def line(**changes: object):
    """A file of JSON lines with one more."""
    return lambda whole: whole + json.dumps({"epoch": 4} | changes).encode() + b"\n"


def config(text: str):
    """A configuration with these words in place of its epochs."""
    return lambda whole: whole.replace(b"epochs = 100", text.encode("utf-8", "surrogatepass"))


DEEP, HUGE = b"[" * 100_000 + b"]" * 100_000, b"1" + b"0" * 5000
REPORT, METRICS, GALLERY, SWEEP = "e/report.json", "run/metrics.jsonl", "e/gallery.npz", "sweep/sweep.json"
EXAMPLES, CONFIG, SHARD = "e/examples.jsonl", "run/config.toml", f"{SHARDS}/00000.jsonl"
SETTINGS, RESULT, HEADER = "begun/settings.json", "seed-0/result.json", "run/last.safetensors"
GRID = [str(number) for number in range(1500)]
FAULTS = [
    (REPORT, b"", "not valid JSON"),
    (REPORT, b"\x00" * 100, "not valid JSON"),
    (REPORT, b"\xff\xfe\x00", "report.json is not text"),
    (REPORT, b'{"format": "widemargin-evaluation-2"}', "has the format 'widemargin-evaluation-2'"),
    (REPORT, b'{"format": "widemargin-evaluation-1"}', "has no accuracy"),
    (REPORT, changed(accuracy={"clean": "high"}), "accuracy.clean must be a number, got 'high'"),
    (REPORT, changed(accuracy={"clean": True}), "accuracy.clean must be a number, got True"),
    (REPORT, changed(accuracy=[1]), "accuracy must be a table"),
    (REPORT, changed(eps=0.1), "eps must be a list"),
    (REPORT, changed(eps=[{"written": "8/255"}]), "eps[0].value is missing"),
    (REPORT, changed(alarms=["x"]), "alarms[0] must be a table"),
    (REPORT, changed(margins={"all": 3}), "margins.all must be a table"),
    (REPORT, changed(curves={"pgd20": {}}), "curves.pgd20 must be a list"),
    (REPORT, DEEP, "too deep"),
    (REPORT, b'{"format": "widemargin-evaluation-1", "a": ' + HUGE + b"}", "a number too long"),
    (REPORT, b" " * 2**23 + b"{}", "larger than the 8 MiB"),
    (REPORT, changed(accuracy={"clean": 1e308}), "accuracy.clean must be a number of at most 1e+30, got 1e+308"),
    (REPORT, changed(accuracy={"clean": 2**70}), "a whole number of more than 64 bits"),
    (REPORT, changed(accuracy={"clean": -1}), "accuracy.clean must be between 0 and 100, got -1"),
    (REPORT, changed(accuracy={"clean": 50.0, "pgd10": 100.5}), "accuracy.pgd10 must be between 0 and 100"),
    (REPORT, changed(accuracy={f"pgd{n}": 1.0 for n in range(1001)}), "holds 1,001 accuracies, more than 1,000"),
    (REPORT, changed(data={"name": "cifar10", "count": -5}), "data.count must be a count, got -5"),
    (REPORT, changed(data={"name": "cifar10", "count": 1.5}), "data.count must be a whole number, got 1.5"),
    (REPORT, changed(data={"name": ["cifar10"]}), "data.name must be words"),
    (REPORT, changed(weights={"a": 1}), "weights must be words, got {'a': 1}"),
    (REPORT, changed(attacks=[["pgd"]]), "attacks[0] must be words"),
    (REPORT, changed(device="x" * 5000), "a text of 5,000 characters"),
    (REPORT, changed(margins={"all": {"quantiles": {"half": 1.0}}}), "margins.all.quantiles.half must be a share"),
    (REPORT, changed(curves={"pgd10": [{"eps": 0.1, "accuracy": 1e30}]}), "between 0 and 100"),
    (REPORT, changed(config={"a": json.loads("[" * 60 + "]" * 60)}), "tables more than 40 deep"),
    (REPORT, changed(step_size=10**30), "a whole number of more than 64 bits"),
    (RESULT, changed(accuracy={"clean": 1e308}), "accuracy.clean must be a number of at most 1e+30"),
    (RESULT, changed(config={"evaluation": {"eps": "1e400"}}), "is not a finite number"),
    (RESULT, changed(config={"evaluation": {"eps": "1e300"}}), "must be a number of at most 1e+30"),
    (RESULT, changed(config={"evaluation": 3}), "config.evaluation must be a table"),
    (EXAMPLES, lambda whole: b"{\n" + whole, "line 1 is not valid JSON"),
    (EXAMPLES, DEEP + b"\n{}\n", "line 1 is not valid JSON (too deep)"),
    (EXAMPLES, b'{"margin": ' + HUGE + b"}\n{}\n", "line 1 is not valid JSON (a number too long)"),
    (EXAMPLES, b'{"margin": 1e100}\n', "margin must be a number of at most 1e+30"),
    (EXAMPLES, b'{"a": "' + b"x" * 2**19 + b'"}\n', "line 1 has more than 262,144 bytes"),
    (EXAMPLES, b'{"broken_at": 3}\n', "broken_at must be a table"),
    (GALLERY, broken_zlib(), "is not a readable .npz file (Error -3 while decompressing data"),
    (GALLERY, npz(adversarial=None), "has no 'adversarial'"),
    (GALLERY, npz(images=np.zeros((2, 3, 4, 4), np.float32)), "must be (G, 1 or 3, H, W) uint8"),
    (GALLERY, npz(labels=np.arange(3)), "one for each image"),
    (GALLERY, npz()[:-40], "is not a readable .npz file"),
    (GALLERY, npz(images=np.zeros(INFLATED + 1, np.uint8)), "more than the 33,554,432 of a gallery"),
    (GALLERY, npz_that_claims((2**40, 3, 2**10, 2**10)), "claims (1099511627776, 3, 1024, 1024) uint8 and has 4 bytes"),
    (GALLERY, npz_that_claims((1, 1, 2, 2), "|O"), "claims (1, 1, 2, 2) object"),
    (GALLERY, npz(images=np.zeros((2, 3, 0, 4), np.uint8)), "images and adversarial must be"),
    (GALLERY, npz(**dict.fromkeys(("images", "adversarial"), np.zeros((2, 3, 0, 4), np.uint8))), "1 to 1024 pixels"),
    (GALLERY, npz(**dict.fromkeys(("images", "adversarial"), np.zeros((2, 1, 1, 2000), np.uint8))), "1 to 1024 pixels"),
    (GALLERY, npz(labels=np.array([0.5, float("nan")])), "whole numbers, one for each image"),
    (METRICS, lambda whole: whole.replace(b"\n", b"\n[\n"), "line 2 is not valid JSON"),
    (METRICS, b'{"loss": 1.0}\n', "line 1 has no epoch"),
    (METRICS, b"[1]\n", "line 1 must be a table"),
    (METRICS, line(alarms="loud"), "line 4: alarms must be a list, got 'loud'"),
    (METRICS, line(alarms=["a", {}]), "line 4: alarms[1] must be words, got {}"),
    (METRICS, b'{"epoch": ' + HUGE + b"}\n{}\n", "a number too long"),
    (METRICS, b'{"epoch": 1e308}\n', "line 1 has no epoch"),
    (METRICS, line(alarms=["a"] * 10_001), "more than 10,000 alarms"),
    (METRICS, line(epoch=-(2**60), loss=-1e30), "line 4 is of epoch -1.15292e+18, after one of epoch 3"),
    (SWEEP, changed(grid={}), "grid must have values for 1 to 50 settings"),
    (SWEEP, changed(grid={"a": []}), "grid must have values for 1 to 50 settings"),
    (SWEEP, changed(grid={str(n): ["1"] for n in range(51)}), "grid must have values for 1 to 50 settings"),
    (SWEEP, changed(grid=[1]), "grid must be a table"),
    (SWEEP, changed(points=[{"point": {"a": "1"}}]), "points[0].point is not a point of the grid: a=1"),
    (SWEEP, changed(points=[[]]), "points[0] must be a table"),
    (CONFIG, b"\xff\xfe", "is not text"),
    (CONFIG, config("epochs = "), "is not valid TOML"),
    (CONFIG, config("epochs = 0x" + "f" * 400), "a whole number of more than 64 bits"),
    (CONFIG, config("epochs = " + "9" * 5000), "is not valid TOML"),
    (CONFIG, config("epochs = -3"), "epochs must be a count, got -3"),
    (CONFIG, config('epochs = "many"'), "epochs must be a number, got 'many'"),
    (CONFIG, config("epochs = 100\nseed = [1]"), "is not valid TOML"),
    (CONFIG, b"data = 3\n", "data must be a table, got 3"),
    (CONFIG, b"a" + b".a" * 3000 + b" = 1", "deep"),
    (SHARD, lambda whole: whole.replace(b"\n", b"\n{\n"), "line 2 is not valid JSON"),
    (SHARD, b'{"verdicts": {}, "margin": "far"}\n', "margin must be a number, got 'far'"),
    (SHARD, b'{"verdicts": {"clean": "yes"}}\n', "verdicts.clean must be true or false, got 'yes'"),
    (SETTINGS, changed(eps=["1/0"]), "'1/0' is not a number"),
    (SETTINGS, changed(eps=[None]), "eps has no size"),
    (SETTINGS, changed(shard_size=-1), "shard_size must be a count"),
    *((name, changed(digest="0" * 64), "does not fit its digest") for name in (REPORT, RESULT, SWEEP)),
    (SHARD, lambda whole: whole.replace(b'"first": 0', b'"first": 0, "count": 3, "digest": "0"'), "fit its digest"),
]


@pytest.mark.parametrize(("name", "content", "says"), FAULTS)
def test_a_file_that_cannot_be_shown_is_one_line_and_the_rest_is_shown(folder, name, content, says):
    path = folder / name
    path.write_bytes(content(path.read_bytes()) if callable(content) else content)
    (fault,) = search([folder]).faults
    assert fault.isprintable()
    assert len(fault) < 400
    assert says in fault
    assert str(path) in fault
    text = page_of(folder)
    assert text.count("This file could not be shown:") == 1
    assert {"results", "training", "facts", "reproduce"} <= set(re.findall(r'<section id="([^"]+)"', text))


@pytest.mark.parametrize(("name", "field"), [(EXAMPLES, "examples"), (GALLERY, "gallery")])
def test_what_lies_beside_a_report_and_is_not_its_own_is_one_line(folder, name, field):
    report = json.loads((folder / REPORT).read_text())
    (folder / REPORT).write_text(json.dumps(sealed(report | {field: "0" * 64})))
    (folder / GALLERY).write_bytes(npz())
    (fault,) = search([folder]).faults
    assert f"{folder / name} does not fit its digest" in fault


def resealed(whole: bytes) -> bytes:
    """With its digest, and laid out otherwise."""
    return json.dumps(sealed(json.loads(whole)), indent=7).encode()


NO_IMAGES = np.zeros((0, 3, 4, 4), np.uint8)
EVIL = "\x1b]0;gone\x07\u202eevil\ud800"
SHOWN = [
    *((name, resealed) for name in (REPORT, RESULT, SWEEP)),
    (REPORT, changed(accuracy={"clean": 100, "pgd10@0.031": 0}, eps=[{"value": 0.031}] * 3)),
    (REPORT, changed(curves={"pgd10": [{"eps": 0.1, "accuracy": 3}], "fgsm": [{"eps": 0, "accuracy": 0}] * 3})),
    (REPORT, changed(accuracy={"clean": 10.0, "autoattack/a": 90.0, "autoattack": 95.0})),
    (REPORT, changed(accuracy={"autoattack": float("nan"), "clean": 50.0}, margins=None, distance=None)),
    (REPORT, changed(margins={"correct": {"mean": -1e30, "std": 1e-320}}, distance={"count": 0, "median": 1e29})),
    (REPORT, changed(target="\0" * 20, data={"name": "", "count": 0})),
    (REPORT, changed(target="a/" * 2000)),
    (REPORT, changed(target=EVIL, name=EVIL, weights=EVIL, device=EVIL, alarms=[{"name": EVIL}], notes=[EVIL])),
    (REPORT, changed(config={EVIL: [None, {EVIL: EVIL}], "data": 3, "model": []}, name="cifar-resnet18/at")),
    (REPORT, lambda whole: whole[:-1] + b', "accuracy": {"clean": 1.0}, "accuracy": {"clean": 99.0}}'),
    (EXAMPLES, b'{"margin": 1e-320}\n{"margin": -1e-320}\n{"margin": NaN, "distance": Infinity}\n'),
    (EXAMPLES, b'{"margin": 1e30, "distance": 1e30}\n{"margin": 1e30}\n' * 3),
    (EXAMPLES, b"{}\n"),
    (EXAMPLES, b""),
    (GALLERY, npz(**dict.fromkeys(("images", "adversarial"), NO_IMAGES), **dict.fromkeys(CLASSES, np.arange(0)))),
    (METRICS, line(test_clean=150, test_robust=-1, loss=1e308, emr=float("inf"), seconds=-5)),
    (METRICS, line(epoch=1e29)),
    (METRICS, lambda whole: whole + b'{"epoch": 4, "los'),
    (METRICS, b""),
    (SWEEP, changed(grid={"a": GRID, "b": GRID}, points=[])),
    (SWEEP, changed(grid={"a": GRID}, points=[{"point": {"a": n}, "results": {"score": 1e30}} for n in GRID * 2])),
    (SWEEP, changed(grid={"a": ["1", "1"], "": [""]}, points=[{"point": {"a": "1", "": ""}, "results": {"score": 0}}])),
    (CONFIG, lambda whole: b'"a.b=c" = [1979-05-27, nan]\n' + whole + b'"\\u007f" = "\\u007f"\n'),
    (CONFIG, config('epochs = 100\n"model.kind" = "x"')),
    (HEADER, b""),
    (HEADER, struct.pack("<Q", 2**63) + b"{}"),
    (HEADER, struct.pack("<Q", 2**27) + b"{" * 100),
    (HEADER, struct.pack("<Q", 10_000) + b"[" * 10_000),
    (HEADER, struct.pack("<Q", 20) + b'{"__metadata__": []}'),
    (SHARD, b'{"verdicts": {"clean": true}}\n{"verdicts": {"other": false}}\n'),
    (SHARD, b""),
]


@pytest.mark.parametrize(("name", "content"), SHOWN)
def test_a_strange_file_is_shown(folder, name, content):
    path = folder / name
    path.write_bytes(content(path.read_bytes()) if callable(content) else content)
    text = page_of(folder)
    assert not re.search(r"could not be shown|nan%|\bNone\b|\bTrue\b", text)
    for suffix in ("html", "md", "csv", "tex"):
        written = (folder.parent / "folder-out" / f"report.{suffix}").read_text(encoding="utf-8")
        assert written == visible(written, lines=True)
        assert len(written) < 3_000_000


def test_a_line_that_ends_in_the_middle_of_a_character(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes('{"a": "ä"}\n{"b": "ä'.encode()[:-1])
    lines = Lines(path)
    assert list(lines) == [{"a": "ä"}]
    assert lines.cut_off


@pytest.mark.parametrize("name", [REPORT, METRICS, GALLERY, EXAMPLES, SWEEP, CONFIG, SHARD, SETTINGS, HEADER, RESULT])
@pytest.mark.parametrize("kind", ["folder", "pipe", "loop", "nowhere", "device"])
def test_what_has_the_name_of_a_file_and_is_none(folder, name, kind):
    path = folder / name
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to({"loop": path, "nowhere": "nowhere", "device": "/dev/zero"}[kind])
    assert "<section" in page_of(folder)


def test_folders_that_lead_back_to_themselves(folder):
    (folder / "run" / "again").symlink_to(folder)
    (folder / "e" / "loop").symlink_to(folder / "e" / "loop")
    assert search([folder]).faults == []


@pytest.mark.parametrize("how", ["closed", "no way in"])
def test_a_folder_that_nobody_may_look_into(folder, monkeypatch, how):
    scandir, access = os.scandir, os.access

    def closed(path):
        if Path(path).name == "sweep":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    if how == "closed":
        monkeypatch.setattr(os, "scandir", closed)
    else:
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "sweep" and access(path, mode))
    found = search([folder])
    assert found.faults == [f"cannot look into {folder / 'sweep'}: Permission denied"]
    assert len(found.sweeps) == 0
    assert len(found.runs) == 1


def test_a_file_that_nobody_may_read(folder, monkeypatch):
    opened = Path.open

    def closed(self, *words, **more):
        if self.name == "report.json":
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *words, **more)

    monkeypatch.setattr(Path, "open", closed)
    assert search([folder]).faults == [f"cannot read {folder / REPORT}: Permission denied"]


NAMES = ['a"b', "a\nb", "<b>&amp;", "\x1b[31mred\x1b[0m", "\u202egpj.exe", "=1+1", "-rf", "a" * 250, "ä·\udcff"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_folders_are_words(tmp_path, name):
    for seed in (0, 1):
        write_run(tmp_path / "all" / name / f"run-{seed}", epochs=1)
        write_evaluation(tmp_path / "all" / name / f"run-{seed}" / name, count=5, name=None)
    text = page_of(tmp_path / "all")
    assert "\x1b" not in text
    assert "<b>" not in text
    assert search([tmp_path / "all"]).faults == []


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1+1", " =1+1", "\r\n=1+1", "＝1+1"]  # noqa: RUF001


@pytest.mark.parametrize("name", FORMULAS)
def test_no_cell_of_the_csv_is_a_formula(tmp_path, name):
    report = write_evaluation(tmp_path / "e", count=5, name=name, norm=name)
    report["data"]["name"] = name
    report["accuracy"] = {"clean": 1.0, name: 2.0, f"autoattack/{name}": 3.0, f"pgd10@{name}": 4.0}
    report["eps"] = [{"written": name, "value": 0.1}]
    (tmp_path / "e" / "report.json").write_text(json.dumps(report))
    page_of(tmp_path)
    text = (tmp_path.parent / f"{tmp_path.name}-out" / "report.csv").read_text(encoding="utf-8")
    rows = list(csv.reader(io.StringIO(text)))
    words = [cell for row in rows for cell in row if not re.fullmatch(r"-?[0-9.e+-]+", cell)]
    assert any(cell.startswith("'") for cell in words)
    assert not [cell for cell in words if cell.startswith(tuple("=+-@\t\r\n ＝"))]  # noqa: RUF001


def test_a_gallery_keeps_no_more_than_is_shown(tmp_path):
    write_gallery(tmp_path / "gallery.npz", count=MOST + 9)
    found = read_gallery(tmp_path / "gallery.npz")
    assert {len(array) for array in (found.images, found.adversarial, found.labels, found.predictions)} == {MOST}
    assert found.images.base is None  # nor the memory of the others


def test_a_gallery_is_not_inflated_beyond_its_bound(tmp_path, monkeypatch):
    path = tmp_path / "gallery.npz"
    path.write_bytes(npz(adversarial=np.zeros(2 * INFLATED, np.uint8)))
    assert path.stat().st_size < INFLATED / 100
    inflated = []
    decompressor = zlib.decompressobj

    class Counted:
        def __init__(self, *words):
            self._inner = decompressor(*words)

        def decompress(self, *words):
            inflated.append(len(content := self._inner.decompress(*words)))
            return content

        def __getattr__(self, name):
            return getattr(self._inner, name)

    monkeypatch.setattr(zlib, "decompressobj", Counted)
    with pytest.raises(InputError, match="more than the"):
        read_gallery(path)
    assert sum(inflated) < INFLATED


def test_many_faults_are_counted(folder, monkeypatch):
    monkeypatch.setattr(provenance, "FAULTS", 1)
    for name in (METRICS, GALLERY, SWEEP):
        (folder / name).write_bytes(b"\xff\n\n")
    text = page_of(folder)
    assert text.count("This file could not be shown") == 1
    assert "And 2 more could not be shown." in text


def test_where_nothing_can_be_shown_the_command_says_why(tmp_path):
    for name in "ab":
        write_evaluation(tmp_path / name, count=5)
        (tmp_path / name / "report.json").write_text("{")
    with pytest.raises(InputError, match=r"nothing can be shown: .*a/report.json is not valid JSON .* \(and 1 more\)"):
        search([tmp_path])
