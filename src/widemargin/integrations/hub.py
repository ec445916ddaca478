"""Hugging Face's hub: a folder uploaded, and the weights of ``hf://owner/name`` fetched, with huggingface_hub.

A model of ours is ``model.safetensors``, a checkpoint without what resuming needs: it describes itself, so the weights
are enough to load it. Address and token are those of huggingface_hub (``HF_ENDPOINT``, ``hf auth login``).
"""

import re
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

import huggingface_hub
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, RepositoryNotFoundError

from widemargin.data.datasets import DATASETS
from widemargin.errors import InputError

WEIGHTS = "model.safetensors"
_ADDRESS = re.compile(r"hf://([^/@\s]+/[^/@\s]+?)(?:@([^\s]+))?/?")


def fetch(address: str) -> Path:
    """The weights of ``hf://owner/name``, or of one revision, ``hf://owner/name@v1``, in the hub's own cache."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise InputError(f"{address!r} is no address of a model; write hf://owner/name, or hf://owner/name@revision")
    repository, revision = found.groups()
    try:
        return Path(huggingface_hub.hf_hub_download(repository, WEIGHTS, revision=revision))
    except RepositoryNotFoundError:
        reason = "there is no such repository, or it is private and needs a token (hf auth login)"
    except EntryNotFoundError:  # also where there is no network and nothing in the cache
        reason = f"it holds no {WEIGHTS}, as widemargin push writes it, or cannot be reached"
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = _one_line(error)
    raise InputError(f"cannot fetch {address}: {reason}")


def local_paths(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """(path, its last part) of what only means something on the machine where it was trained, or judged.

    The folders that other people's names lead to are nobody's business: only the last part is to be published.
    """
    found: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= local_paths(value, f"{prefix}{key}.")
        for text in value if isinstance(value, list | tuple) else [value]:
            if isinstance(text, Mapping):
                found |= local_paths(text, f"{prefix}{key}.")
            elif isinstance(text, str) and text not in DATASETS:
                name = PureWindowsPath(text).name
                if name != text and (f"{prefix}{key}" in _PATHS or _ABSOLUTE.match(text)):
                    found[text] = name
    return found


_PATHS = ("init_from", "data.name", "data.extra", "data.source")
_ABSOLUTE = re.compile(r"/|~|\.{1,2}[/\\]|[A-Za-z]:[/\\]|\\\\")


def upload(folder: Path, repository: str, *, private: bool, message: str) -> str:
    """Put the files of the folder into the repository, which is made where there is none; returns its address."""
    api = huggingface_hub.HfApi()
    try:
        url = api.create_repo(repository, private=private or None, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message)
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise InputError(
            f"cannot push to {repository}: {_one_line(error)}; is it owner/name, and have you said hf auth login?"
        ) from None
    return str(url)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
