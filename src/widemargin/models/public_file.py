"""Tensors from a file somebody else wrote (``.pt``, ``.pth``, ``.ckpt``, ``.safetensors``): read, never run.

``torch.load`` with ``weights_only`` refuses every pickle that would call something. Before it sees the file, the sizes
in the zip directory are compared with the file's own: torch stores without compression, so they must fit.
"""

import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from widemargin.errors import InputError
from widemargin.files import check_file

_SHOWN = 120  # characters of somebody else's error


def read_tensors(path: Path) -> Mapping[str, Any]:
    """The tensors of a public file; anything that would run code is refused."""
    check_file(path)
    try:
        content = load_file(path) if path.suffix == ".safetensors" else _unpickled(path)
    except Exception as error:  # whatever a broken or hostile file makes the readers raise
        raise InputError(
            f"{path} cannot be read as tensors alone, and nothing else is ever run: {_reason(error)}; "
            "save model.state_dict()"
        ) from None
    if not isinstance(content, Mapping) or not all(isinstance(key, str) for key in content):
        raise InputError(f"{path} holds a {type(content).__name__}, not a state dict; save model.state_dict()")
    return content


def _reason(error: Exception) -> str:
    """In a line; torch's own advice about pickles would run them, and its readers fail in words of their own."""
    if isinstance(error, OSError | ValueError | SafetensorError) and str(error):
        return str(error).splitlines()[0][:_SHOWN]
    return "it holds other objects than tensors, or is no file that torch wrote"


def _unpickled(path: Path) -> object:
    if zipfile.is_zipfile(path):
        _check_directory(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about pickle protocols; what matters is said by the caller
        return torch.load(path, map_location="cpu", weights_only=True)


def _check_directory(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError("it is a compressed archive, which torch.save does not write")
    claimed, size = sum(member.file_size for member in members), path.stat().st_size
    if claimed > size:
        raise ValueError(f"its members claim {claimed} bytes, more than the {size} it has")
