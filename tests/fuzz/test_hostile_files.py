"""Files made to do harm: to run, to write elsewhere, to fill the memory, to never end. Each is refused in one line."""

import ast
import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from readers import RECORDS, binary_batch, checkpoint_bytes, digits, network, python_batch, sealed_again, tiny_files
from structures import joined, split

import widemargin
from data_files import mat, mat_array, npy, npy_that_says, tar_of, written, zip_of
from widemargin.config import checkpoint
from widemargin.config.checkpoint import load_checkpoint, load_newest, restore_model
from widemargin.config.toml import from_dict, read_toml, to_toml, with_overrides
from widemargin.data import load, read_cifar10, read_svhn, read_tiny_imagenet
from widemargin.data.cifar import read_python_batch
from widemargin.data.idx import read_images
from widemargin.data.image_folder import read_image_folder
from widemargin.data.npz import read_npz
from widemargin.errors import InputError
from widemargin.evaluation.target import load_model, load_target
from widemargin.models import load_public_state_dict, public_weights
from widemargin.models.public_weights import read_tensors
from widemargin.recipes import all_recipes

# ---- sizes that are not true


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("sizes", [(2**20, 2**10, 2**10), (2**32 - 1,) * 3, (2**16, 2**16, 256)])
def test_an_idx_header_that_claims_a_terabyte(tmp_path, sizes, packed):
    content = struct.pack(">4I", 0x803, *sizes) + bytes(100)
    with pytest.raises(InputError, match=r"the header promises \d{13,} bytes, more than"):
        read_images(written(tmp_path, "a", content, packed=packed))


@pytest.mark.parametrize("shape", [(2**20, 2**10, 2**10), (2**62, 1, 1), (6, 28, 2**40)])
def test_an_npz_whose_array_claims_a_terabyte(tmp_path, shape):
    array = npy_that_says(shape, digits().tobytes())
    path = written(tmp_path, "a.npz", zip_of({"images.npy": array, "labels.npy": npy(np.arange(6))}))
    with pytest.raises(InputError, match=r"the header promises .* bytes, more than"):
        read_npz(path, "train")


def test_an_npz_whose_directory_and_header_lie_together(tmp_path):
    """Zip directory and array agree on 2 GB; there are 4 kB."""
    count = 2**31 // 784
    array = npy_that_says((count, 28, 28), bytes(4096))
    content = bytearray(zip_of({"images.npy": array, "labels.npy": npy(np.zeros(count, np.int8))}))
    true, false = struct.pack("<I", len(array)), struct.pack("<I", len(array) - 4096 + count * 784)
    path = written(tmp_path, "a.npz", bytes(content).replace(true, false))
    with pytest.raises(InputError):
        read_npz(path, "train")


@pytest.mark.parametrize(("labels", "classes"), [([0, 2**31 - 1], None), ([0, 1], 2**40)])
def test_class_numbers_for_which_no_network_could_be_built(tmp_path, labels, classes):
    more = {} if classes is None else {"num_classes": np.array(classes)}
    np.savez(tmp_path / "a.npz", images=digits()[:2], labels=np.array(labels), **more)
    with pytest.raises(InputError, match=f"{2**20}, (found|got)"):
        read_npz(tmp_path / "a.npz", "train")


@pytest.mark.parametrize("name", ["notes.txt", "a.safetensors"])
def test_a_text_is_told_from_a_damaged_checkpoint(tmp_path, name):
    path = written(tmp_path, name, b"These are notes about weights, and no weights.\n")
    with pytest.raises(InputError, match="it does not begin as a safetensors file does, so it holds something else"):
        load_checkpoint(path)


@pytest.mark.parametrize("length", [2**27, 2**40, 2**63, 2**64 - 1])
def test_a_safetensors_header_of_huge_size(tmp_path, length):
    path = written(tmp_path, "a.safetensors", struct.pack("<Q", length) + b"{}")
    with pytest.raises(InputError, match=f"it claims a header of {length} bytes and has 10 bytes in all"):
        load_checkpoint(path)


def described(folder: Path, change: dict[str, object]) -> Path:
    """A checkpoint whose description says something else, its checksum made to fit."""
    header, body = split(checkpoint_bytes(folder))
    table = json.loads(header["__metadata__"]["widemargin"])
    table["config"] |= change
    content = joined(header | {"__metadata__": {"widemargin": json.dumps(table)}}, body)
    return written(folder, "a.safetensors", sealed_again(content))


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"kind": "mlp", "hidden": [2**20, 2**20]}},
        {"model": {"kind": "mlp", "hidden": [2**40]}},
        {"model": {"kind": "wrn-34-10", "depth": 6 * 10**8 + 4, "widen": 1}},
        {"model": {"kind": "resnet18", "width": 2**20}},
    ],
)
def test_a_description_of_a_network_far_larger_than_the_file(tmp_path, change):
    path = described(tmp_path, change)
    with pytest.raises(InputError, match="is far larger than the weights it holds"):
        restore_model(load_checkpoint(path), source=path)


def test_public_weights_that_describe_a_network_far_larger_than_they_are(tmp_path):
    weights = {
        f"fcs.{i}.{part}": torch.zeros(2**16, *more) for i in range(3) for part, more in (("weight", [1]), ("bias", []))
    }
    torch.save(weights, tmp_path / "a.pt")
    with pytest.raises(InputError, match="is far larger than the weights it holds"):
        load_model(str(tmp_path / "a.pt"), image_shape=(1, 4, 4))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.zeros(1).expand(2**40), "and store less"),
        (torch.empty(2**40, device="meta"), "hold no values for fcs.0.weight"),
        (torch.zeros(5, 16).to_sparse(), "no dense tensor of real numbers"),
        (torch.zeros(5, 16, dtype=torch.complex64), "no dense tensor of real numbers"),
    ],
)
def test_public_weights_that_are_none(tmp_path, value, words):
    torch.save(dict(network().state_dict()) | {"fcs.0.weight": value}, tmp_path / "a.pt")
    with pytest.raises(InputError, match=words):
        load_model(str(tmp_path / "a.pt"), image_shape=(1, 4, 4))


@pytest.mark.parametrize(
    "shapes",
    [
        {"block1.layer.0.conv1.weight": [1], "fc.weight": [3]},
        {"layer4.0.conv1.weight": [1], "bn1.weight": [1], "linear.weight": [3]},
        {"conv4.weight": [1], "conv4.bias": [1], "fc.weight": []},
        {"fcs.0.weight": [3, 16], "fcs.7.weight": [3, 3]},
    ],
)
def test_public_weights_with_the_names_of_a_network_and_not_its_layers(tmp_path, shapes):
    torch.save({key: torch.zeros(shape) for key, shape in shapes.items()}, tmp_path / "a.pt")
    with pytest.raises(InputError, match=r"these weights (are of|have a last layer)|must be an integer of at least"):
        load_model(str(tmp_path / "a.pt"), image_shape=(1, 4, 4))


def test_weights_without_values_do_not_pass_for_a_trained_network():
    empty = {key: value.to("meta") for key, value in network().state_dict().items()}
    with pytest.raises(InputError, match=r"hold no values for fcs.0.weight"):
        load_public_state_dict(network(), empty)


def test_public_weights_nested_in_themselves(tmp_path):
    state: dict[str, object] = {}
    state["state_dict"] = state
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(InputError, match="nested more than 10 deep"):
        load_model(str(tmp_path / "a.pt"), image_shape=(1, 4, 4))


def test_a_compressed_bomb_as_public_weights(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", b"\x80\x02}." + bytes(10**7))
    with pytest.raises(InputError, match=r"it is a compressed archive, which torch.save does not write"):
        load_model(str(tmp_path / "a.pt"), image_shape=(1, 4, 4))


def test_public_weights_whose_directory_claims_more_than_there_is(tmp_path):
    torch.save(dict(network().state_dict()), tmp_path / "a.pt")
    content = (tmp_path / "a.pt").read_bytes()
    size = struct.pack("<II", 5 * 16 * 4, 5 * 16 * 4)  # of the first weights, packed and unpacked
    assert size in content
    written(tmp_path, "a.pt", content.replace(size, struct.pack("<II", 2**31, 2**31)))
    with pytest.raises(InputError, match=r"its members claim .* bytes, more than the"):
        load_model(str(tmp_path / "a.pt"), image_shape=(1, 4, 4))


def test_an_image_that_claims_billions_of_pixels(tmp_path):
    for name in "ab":
        stream = io.BytesIO()
        Image.new("L", (4, 4)).save(stream, "PNG")
        content = bytearray(stream.getvalue())
        content[16:24] = struct.pack(">II", 60000, 60000)
        content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
        written(tmp_path / name, "1.png", bytes(content))
    with pytest.raises(InputError, match=r"1.png: cannot be read as an image .*decompression bomb"):
        read_image_folder(tmp_path, "test")


# ---- files that never end


def test_a_pipe_among_the_images(tmp_path):
    for name in "ab":
        _pipe(tmp_path / name / "1.png")
    with pytest.raises(InputError, match=r"1.png is a pipe, not a file"):
        read_image_folder(tmp_path, "test")


def _tuples_of_tuples(end: bytes) -> bytes:
    """Forty tuples, each of which holds the one before twice: 2**40 leaves."""
    doubled = b"".join(b"h" + bytes([i]) + b"h" + bytes([i]) + b"\x86q" + bytes([i + 1]) for i in range(40))
    return b"\x80\x02}(K\x01K\x01\x86q\x00" + doubled + end


@pytest.mark.parametrize("end", [b"K\x01u.", b"tU\x04data\x86."])
def test_a_pickle_that_would_hash_or_print_for_ever(end):
    with pytest.raises(InputError, match="it uses a tuple twice"):
        read_python_batch(_tuples_of_tuples(end), "batch", records=RECORDS)


def test_a_pickle_whose_shape_would_print_for_ever():
    """Lists may be used twice, so the shape is never printed."""
    doubled = b"".join(b"](h" + bytes([i]) + b"h" + bytes([i]) + b"eq" + bytes([i + 1]) for i in range(100, 140))
    marker = b"(K\x01K" + bytes([RECORDS]) + b"M\x00\x0c\x86"
    content = python_batch()
    assert marker in content
    hostile = content.replace(marker, b"(K\x01](](" + b"N" * 120 + b"eq\x64" + doubled + b"e\x85")
    with pytest.raises(InputError, match=r"does not have the shape \(2, 3072\)"):
        read_python_batch(hostile, "batch", records=RECORDS)


def test_a_tar_header_within_a_header_within_a_header(tmp_path):
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 0
    content = header.tobuf(tarfile.GNU_FORMAT) * 5000
    path = written(tmp_path, "a.tar.gz", gzip.compress(content))
    with pytest.raises(InputError, match=r"a.tar.gz"):
        read_cifar10(path, "test", records_per_batch=RECORDS)


def _pipe(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return path


def _piped_mnist(folder: Path) -> object:
    for part in ("images-idx3", "labels-idx1"):
        _pipe(folder / "mnist" / f"train-{part}-ubyte.gz")
    return load("mnist", "train", data_dir=folder)


def _piped_wnids(folder: Path) -> object:
    return read_tiny_imagenet(_pipe(folder / "tiny-imagenet-200" / "wnids.txt").parent, "test")


PIPED = {
    "configuration": lambda folder: read_toml(_pipe(folder / "a.toml")),
    "public weights": lambda folder: load_model(str(_pipe(folder / "a.pt")), image_shape=(1, 4, 4)),
    "public weights in Python": lambda folder: read_tensors(_pipe(folder / "a.pt")),
    "checkpoint": lambda folder: load_model(str(_pipe(folder / "a.safetensors")), image_shape=None),
    "checkpoint in Python": lambda folder: load_checkpoint(_pipe(folder / "a.safetensors")),
    "weights of a run": lambda folder: load_target(_pipe(folder / "run" / "last.safetensors").parent),
    "weights of a run that goes on": lambda folder: load_newest(_pipe(folder / "last.safetensors"), folder),
    "arrays": lambda folder: read_npz(_pipe(folder / "a.npz"), "train"),
    "idx": lambda folder: read_images(_pipe(folder / "a.gz")),
    "MNIST": _piped_mnist,
    "archive": lambda folder: read_cifar10(_pipe(folder / "a.tar.gz"), "test"),
    "CIFAR-10": lambda folder: load(
        "cifar10", "test", data_dir=_pipe(folder / "cifar10" / "cifar-10-binary.tar.gz").parents[1]
    ),
    "SVHN": lambda folder: read_svhn(_pipe(folder / "test_32x32.mat")),
    "Tiny-ImageNet": lambda folder: read_tiny_imagenet(_pipe(folder / "tiny-imagenet-200.zip"), "test"),
    "Tiny-ImageNet, one file of it": _piped_wnids,
}


@pytest.mark.parametrize("what", PIPED)
def test_a_pipe_in_place_of_a_file(tmp_path, what):
    with pytest.raises(InputError, match=r"is a pipe, not a file; replace it by a file or remove it"):
        PIPED[what](tmp_path)


def test_a_device_in_place_of_a_file(tmp_path):
    for name in ("a.toml", "a.pt", "a.safetensors"):
        (tmp_path / name).symlink_to("/dev/zero")
        with pytest.raises(InputError, match=f"{name} is a device, not a file"):
            read_toml(tmp_path / name) if name == "a.toml" else load_model(str(tmp_path / name), image_shape=None)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_tar_header_of_nines_alone(tmp_path, monkeypatch, kind):
    """tarfile would look for a number from each of its digits on: half a minute for a few hundred bytes."""
    monkeypatch.setattr(tarfile.TarFile, "next", None)  # so it is not asked
    header = tarfile.TarInfo("a")
    header.type, header.size = kind, 512 * 400
    whole = tarfile.TarInfo("b/test_batch.bin")
    whole.size = len(binary_batch())
    rest = whole.tobuf() + binary_batch().ljust(-(-whole.size // 512) * 512, b"\0") + bytes(1024)
    content = gzip.compress(header.tobuf(tarfile.USTAR_FORMAT) + b"9" * header.size + rest)
    assert len(read_cifar10(written(tmp_path, "a.tar.gz", content), "test", records_per_batch=RECORDS)) == RECORDS
    content = gzip.compress(header.tobuf(tarfile.USTAR_FORMAT) + b"9" * 1000)
    with pytest.raises(InputError, match=r"cannot be read as a tar.gz file \(it ends in the middle of a member\)"):
        read_cifar10(written(tmp_path, "a.tar.gz", content), "test", records_per_batch=RECORDS)


@pytest.mark.parametrize(
    "model", [{"kind": "mlp", "hidden": [1] * 5000}, {"kind": "wrn-34-10", "depth": 6 * 1000 + 4, "widen": 1}]
)
def test_a_description_of_many_layers_of_almost_nothing(tmp_path, monkeypatch, model):
    """Few values, so it is the number of layers that would take minutes."""
    monkeypatch.setattr(public_weights, "_EXTRA_VALUES", 2**40)
    path = described(tmp_path, {"model": model})
    with pytest.raises(InputError, match="is far larger than the weights it holds"):
        restore_model(load_checkpoint(path), source=path)


def test_no_file_holds_a_network_of_more_layers_than_any_has():
    weights = {str(number): torch.zeros(1) for number in range(6000)}
    with (
        pytest.raises(InputError, match="has more than 20000 tensors"),
        public_weights.no_larger_than(weights, source="a"),
    ):
        [torch.empty(0) for _ in range(20_001)]


def test_a_checkpoint_with_terabytes_of_nothing_at_its_end(tmp_path, monkeypatch):
    path = written(tmp_path, "a.safetensors", checkpoint_bytes(tmp_path))
    with path.open("r+b") as stream:
        stream.truncate(2**40)
    monkeypatch.setattr(checkpoint, "_CHUNK", "never read on")
    with pytest.raises(InputError, match=r"it has 1099511627776 bytes, \d+ more than it describes"):
        load_checkpoint(path)


def test_the_names_of_a_file_of_many_arrays_are_not_all_told(tmp_path):
    path = written(tmp_path, "a.npz", zip_of({f"{'x' * 99}{number}.npy": b"" for number in range(500)}))
    with pytest.raises(InputError, match="and 492 more") as caught:
        read_npz(path, "train")
    assert len(str(caught.value)) < 1000


# ---- archives that would write or reach elsewhere


@pytest.mark.parametrize(
    "name", ["../../test_batch.bin", "/elsewhere/test_batch.bin", "a/../../b/test_batch.bin", "C:\\test_batch.bin"]
)
def test_members_with_names_elsewhere_are_only_ever_read(tmp_path, name):
    path = written(tmp_path / "in" / "here", "a.tar.gz", tar_of({name: binary_batch()}), packed=True)
    before = sorted(tmp_path.rglob("*"))
    try:
        assert len(read_cifar10(path, "test", records_per_batch=RECORDS)) == RECORDS
    except InputError as error:
        assert "expected the members" in str(error)  # noqa: PT017 - either is right
    assert sorted(tmp_path.rglob("*")) == before
    assert not Path("/elsewhere/test_batch.bin").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE])
def test_links_and_devices_in_an_archive_are_passed_over(tmp_path, kind):
    secret = written(tmp_path, "secret", binary_batch())
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("test_batch.bin")
        member.type, member.linkname = kind, str(secret)
        archive.addfile(member)
    with pytest.raises(InputError, match=r"expected the members test_batch.bin or test_batch, found none of them"):
        read_cifar10(tmp_path / "a.tar.gz", "test", records_per_batch=RECORDS)


@pytest.mark.parametrize("size", [2**33, 2**40, 2**62])
def test_a_member_that_claims_to_be_huge(tmp_path, size):
    member = tarfile.TarInfo("test_batch.bin")
    member.size = size
    path = written(tmp_path, "a.tar.gz", gzip.compress(member.tobuf(tarfile.GNU_FORMAT) + bytes(2048)))
    with pytest.raises(InputError, match=f"expected 6146 bytes, got {size}"):
        read_cifar10(path, "test", records_per_batch=RECORDS)


@pytest.mark.parametrize("name", ["other", "test_batch.bin"])
def test_an_archive_that_inflates_without_end(tmp_path, name):
    member = tarfile.TarInfo("other")
    member.size = 2**27
    content = gzip.compress(member.tobuf(tarfile.GNU_FORMAT) + bytes(2**27), 1)
    with pytest.raises(InputError, match="inflates to more than CIFAR-10 holds"):
        read_cifar10(written(tmp_path, "a.tar.gz", content), "test", records_per_batch=RECORDS)


@pytest.mark.parametrize("member", ["wnids.txt", "val/val_annotations.txt", "val/images/val_0.JPEG"])
def test_a_member_of_tiny_imagenet_that_inflates_without_end(tmp_path, member):
    files = tiny_files() | {f"tiny-imagenet-200/{member}": bytes(2**27)}
    path = written(tmp_path, "a.zip", zip_of(files, zipfile.ZIP_DEFLATED))
    with pytest.raises(InputError, match="it has 134217728 bytes"):
        read_tiny_imagenet(path, "test", classes=2, per_class=2)


def test_deflated_digits_without_end(tmp_path):
    """Told as they are, or as fewer than they are."""
    shape = (32, 32, 3, 2**13)
    for told in (shape, (32, 32, 3, 2)):
        array = mat_array("X", np.zeros(shape, np.uint8), deflated=True, shape=told)
        assert len(array) < 2**20
        with pytest.raises(InputError, match=r"holds no array 'y'|bytes, for shape .* they should be 6144"):
            read_svhn(written(tmp_path, "a.mat", mat({}) + array))


UNPACKING = {"extract", "extractall", "unpack_archive", "_extract_member"}


def test_no_source_of_ours_unpacks_an_archive_to_disk():
    sources = sorted(Path(widemargin.__file__).parent.rglob("*.py"))
    assert len(sources) > 100
    for path in sources:
        names = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        assert not names & UNPACKING, path


# ---- files that would run


class _Harm:
    def __init__(self, call: object, *arguments: object) -> None:
        self.form = call, arguments

    def __reduce__(self):
        return self.form


@pytest.mark.parametrize("form", ["zip", "old", "bare"])
@pytest.mark.parametrize("suffix", [".pt", ".pth", ".ckpt"])
def test_public_weights_that_would_run_something(tmp_path, form, suffix):
    harm, path = {"fcs.0.weight": _Harm(os.mkdir, str(tmp_path / "harm"))}, tmp_path / f"a{suffix}"
    if form == "bare":
        path.write_bytes(pickle.dumps(harm))
    else:
        torch.save(harm, path, _use_new_zipfile_serialization=form == "zip")
    with pytest.raises(InputError, match="cannot be read as tensors alone, and nothing else is ever run"):
        load_model(str(path), image_shape=(1, 4, 4))
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("protocol", range(6))
def test_a_cifar_batch_that_would_run_something(tmp_path, protocol):
    trace = tmp_path / "harm"
    for call, argument in ((os.system, f"touch {trace}"), (eval, f"open({str(trace)!r}, 'w')"), (Path.touch, trace)):
        for content in (_Harm(call, argument), {b"data": _Harm(call, argument), b"labels": [0] * RECORDS}):
            with pytest.raises(InputError, match="nothing in it was executed"):
                read_python_batch(pickle.dumps(content, protocol), "batch", records=RECORDS)
    assert not trace.exists()


def test_an_array_of_objects_is_never_unpickled(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.array([_Harm(os.mkdir, str(tmp_path / "harm"))]), labels=np.array([0]))
    with pytest.raises(InputError, match="holds Python objects"):
        read_npz(tmp_path / "a.npz", "train")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    "content", [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n", b"%PDF-1.4\n", b"GIF89a\x04\0\x04\0"]
)
def test_a_program_under_the_name_of_an_image(tmp_path, content):
    """Pillow hands PostScript to Ghostscript; it is not asked."""
    for name in "ab":
        written(tmp_path / name, "1.png", content)
    with pytest.raises(InputError, match=r"1.png: cannot be read as an image"):
        read_image_folder(tmp_path, "test")


# ---- configurations


REAL = to_toml(next(iter(all_recipes().values())).config)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed = " + "9" * 5000, "is not valid TOML"),
        ("seed = 0x" + "f" * 5000, "seed must be a whole number of at most 64 bits"),
        ("seed = 1" + "0" * 400, "seed must be a whole number of at most 64 bits"),
        ("a" + ".a" * 2000 + " = 1", "nested too deeply"),
        ("a = " + "[" * 5000 + "]" * 5000, "is not valid TOML"),
        ("a = " + "{a = " * 100 + "1" + "}" * 100, "unknown key 'a'"),
        ("model = {kind = [1]}", "model.kind must be one of"),
        ("model = {kind = {kind = 1}}", "model.kind must be one of"),
        ("seed = \ud800", "is not valid TOML"),
        ("#" * 100_000, "is more than 65536 bytes"),
    ],
)
def test_configurations_nobody_would_write(tmp_path, text, words):
    kept = [line for line in REAL.splitlines() if not line.startswith("seed")]
    body = "\n".join([text, *kept]) if "model" not in text else text
    path = written(tmp_path, "a.toml", body.encode("utf-8", "surrogatepass"))
    with pytest.raises(InputError, match=words):
        read_toml(path)


@pytest.mark.parametrize("value", ["9" * 5000, "0x" + "f" * 5000, "[" * 5000, "1" + "0" * 400])
def test_settings_nobody_would_give(value):
    config = next(iter(all_recipes().values())).config
    with pytest.raises(InputError):
        with_overrides(config, [f"seed={value}"])


def test_a_learning_rate_beyond_all_numbers():
    table = {"optimizer": {"lr": 10**400}}
    with pytest.raises(InputError, match=r"optimizer.lr must be a whole number of at most 64 bits"):
        from_dict(table)
