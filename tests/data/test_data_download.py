"""Fetching from a server on this machine: whole files or none, and a line that helps."""

import hashlib
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from widemargin.data.datasets import SOURCES, OfficialFile, fetch
from widemargin.errors import InputError

CONTENT = bytes(range(256)) * 600


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/absent":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[: len(CONTENT) // 2] if self.path == "/cut" else CONTENT)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    served = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{served.server_port}"
    served.shutdown()
    served.server_close()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def official(*urls: str, content: bytes = CONTENT, name: str = "x.gz") -> OfficialFile:
    return OfficialFile(name, urls, hashlib.md5(content).hexdigest(), hashlib.sha256(content).hexdigest())


def test_fetches_once(tmp_path: Path, server: str) -> None:
    files = [official(f"{server}/x.gz"), official(f"{server}/y", name="y")]
    paths = fetch(files, tmp_path / "new" / "folder", dataset="toy")
    assert [path.read_bytes() == CONTENT for path in paths] == [True, True]
    paths[0].write_bytes(b"the user's own")  # what is there is not fetched or hashed again
    assert fetch(files, tmp_path / "new" / "folder", dataset="toy")[0].read_bytes() == b"the user's own"


def test_second_address_is_tried(tmp_path: Path, server: str) -> None:
    (path,) = fetch([official(f"{server}/absent", f"{server}/x")], tmp_path, dataset="toy")
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("address", "content"),
    [
        ("{server}/absent", CONTENT),
        ("{server}/cut", CONTENT),
        ("{server}/x", b"something else"),
        ("http://127.0.0.1:1/x", CONTENT),
    ],
)
def test_failures_leave_nothing_and_say_what_to_do(tmp_path: Path, server: str, address: str, content: bytes) -> None:
    url = address.format(server=server)
    with pytest.raises(InputError) as caught:
        fetch([official(url, content=content), official("http://h/y", name="y")], tmp_path / "d", dataset="toy")
    message = str(caught.value)
    assert "\n" not in message
    assert f"put {url} (md5" in message
    assert f"at {tmp_path / 'd' / 'x.gz'}" in message
    assert f"at {tmp_path / 'd' / 'y'}" in message
    assert list((tmp_path / "d").iterdir()) == []


def test_interruption_leaves_nothing(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("widemargin.data.datasets._ProgressBar.update", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch([official(f"{server}/x")], tmp_path, dataset="toy")
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_written(tmp_path: Path, server: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot download"):
        fetch([official(f"{server}/x")], tmp_path / "file", dataset="toy")


def test_without_pooch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(InputError, match=r"pooch, which downloads them, is not installed.*x\.gz"):
        fetch([official("http://h/x.gz")], tmp_path, dataset="toy")


def test_sources_are_well_formed() -> None:
    for splits in SOURCES.values():
        assert set(splits) == {"train", "test"}
        for file in (file for files in splits.values() for file in files):
            assert (len(file.md5), len(file.sha256)) == (32, 64)
            int(file.md5 + file.sha256, 16)
            assert all(url.endswith("/" + file.name) for url in file.urls)
