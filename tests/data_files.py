"""Files of data as their formats describe them, written byte by byte, also such as say what is not true."""

import gzip
import io
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npy_that_says(shape: Any, content: bytes, kind: Any = "|u1", *, fortran: bool = False) -> bytes:
    """Whatever the content is."""
    told = repr({"descr": kind, "fortran_order": fortran, "shape": shape}).encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(told) + 1) + told + b"\n" + content


def zip_of(members: dict[str, bytes], kind: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", kind) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def tar_of(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def cifar_binary(images: np.ndarray, labels: list[int]) -> bytes:
    return b"".join(bytes([label]) + image.tobytes() for image, label in zip(images, labels, strict=True))


def cifar100_binary(images: np.ndarray, labels: list[int]) -> bytes:
    """The coarse label first; here it is what a reader of the wrong byte would take."""
    coarse = (bytes([label // 5, label]) for label in labels)
    return b"".join(both + image.tobytes() for image, both in zip(images, coarse, strict=True))


def cifar_python2(images: np.ndarray, labels: list[int], name: bytes = b"labels") -> bytes:
    """A batch as Python 2's cPickle wrote it, protocol 2, instruction by instruction."""
    raw = images.tobytes()
    head = b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03"
    head += b"U" + bytes([len(name)]) + name + b"q\x04]q\x05("
    numbers = b"".join(b"K" + bytes([label]) for label in labels) + b"eU\x04dataq\x06"
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85q\tU\x01bq\n\x87q\x0bRq\x0c"
    shape = b"(K\x01K" + bytes([len(images)]) + b"M\x00\x0c\x86q\r"
    dtype = b"cnumpy\ndtype\nq\x0eU\x02u1q\x0fK\x00K\x01\x87q\x10Rq\x11(K\x03U\x01|q\x12NNN" + b"J\xff\xff\xff\xff" * 2
    values = b"K\x00tq\x13b\x89T" + len(raw).to_bytes(4, "little") + raw + b"q\x14tq\x15b"
    names = b"U\tfilenamesq\x16]q\x17(" + b"U\x05a.png" * len(images) + b"eu."
    return head + numbers + array + shape + dtype + values + names


def mat(arrays: dict[str, np.ndarray], *, deflated: bool = True, order: bytes = b"IM") -> bytes:
    """A MATLAB 5 file of numeric arrays."""
    header = b"MATLAB 5.0 MAT-file, Platform: GLNXA64".ljust(116) + bytes(8) + b"\x00\x01" + order
    return header + b"".join(mat_array(name, values, deflated=deflated) for name, values in arrays.items())


MAT_TYPES = {"u1": (9, 2), "i1": (8, 1), "i4": (12, 5), "f4": (7, 7), "f8": (6, 9)}
"""The class of an array and the type of its values, by numpy's name of both."""


def mat_array(name: str, values: np.ndarray, *, deflated: bool, shape: tuple[int, ...] | None = None) -> bytes:
    """One array; ``shape`` is what it says."""
    kind, stored = MAT_TYPES[values.dtype.str[1:]]
    sizes = values.shape if shape is None else shape
    parts = [(6, struct.pack("<2I", kind, 0)), (5, struct.pack(f"<{len(sizes)}i", *sizes)), (1, name.encode())]
    return mat_element([*parts, (stored, values.tobytes(order="F"))], deflated=deflated)


def mat_element(parts: list[tuple[int, bytes]], *, deflated: bool = True) -> bytes:
    """What these elements make; up to four bytes stand in the tag, as MATLAB writes them."""
    content = b""
    for kind, inside in parts:
        if 0 < len(inside) <= 4:
            content += struct.pack("<2H", kind, len(inside)) + inside.ljust(4, b"\0")
        else:
            content += struct.pack("<2I", kind, len(inside)) + inside + bytes(-len(inside) % 8)
    whole = struct.pack("<2I", 14, len(content)) + content
    if not deflated:
        return whole
    packed = zlib.compress(whole, 1)
    return struct.pack("<2I", 15, len(packed)) + packed


def jpeg(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def tiny_imagenet(wnids: list[str], pixels: np.ndarray, *, val: int = 1) -> dict[str, bytes]:
    """The published folder: training images (classes, per class, 64, 64, 3), the first ``val`` of each in val too."""
    files = {"wnids.txt": "\n".join(wnids).encode() + b"\n", "words.txt": b"n0\tthing\n"}
    lines, number = [], 0
    for wnid, images in zip(wnids, pixels, strict=True):
        for i, image in enumerate(images):
            files[f"train/{wnid}/images/{wnid}_{i}.JPEG"] = jpeg(image)
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b"boxes"
    for i in range(val):
        for wnid, images in reversed(list(zip(wnids, pixels, strict=True))):
            files[f"val/images/val_{number}.JPEG"] = jpeg(255 - images[i])
            lines.append(f"val_{number}.JPEG\t{wnid}\t0\t0\t63\t63")
            number += 1
    files["val/val_annotations.txt"] = "\n".join(lines).encode() + b"\n"
    return {f"tiny-imagenet-200/{name}": content for name, content in files.items()}


def written(folder: Path, name: str, content: bytes, *, packed: bool = False) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, 1) if packed else content)
    return path
