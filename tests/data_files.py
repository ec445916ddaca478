"""Files of data as their formats describe them, written byte by byte, also such as say what is not true."""

import gzip
import io
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np


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


def cifar_python2(images: np.ndarray, labels: list[int]) -> bytes:
    """A batch as Python 2's cPickle wrote it, protocol 2, instruction by instruction."""
    raw = images.tobytes()
    head = b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03U\x06labelsq\x04]q\x05("
    numbers = b"".join(b"K" + bytes([label]) for label in labels) + b"eU\x04dataq\x06"
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85q\tU\x01bq\n\x87q\x0bRq\x0c"
    shape = b"(K\x01K" + bytes([len(images)]) + b"M\x00\x0c\x86q\r"
    dtype = b"cnumpy\ndtype\nq\x0eU\x02u1q\x0fK\x00K\x01\x87q\x10Rq\x11(K\x03U\x01|q\x12NNN" + b"J\xff\xff\xff\xff" * 2
    values = b"K\x00tq\x13b\x89T" + len(raw).to_bytes(4, "little") + raw + b"q\x14tq\x15b"
    names = b"U\tfilenamesq\x16]q\x17(" + b"U\x05a.png" * len(images) + b"eu."
    return head + numbers + array + shape + dtype + values + names


def written(folder: Path, name: str, content: bytes, *, packed: bool = False) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, 1) if packed else content)
    return path
