"""Sources behind URLs: of stores in memory, of files, and of servers that fail now and then or give no ranges."""

import http.server
import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tileweave as tw
from tileweave.errors import StorageError
from tileweave.runtime.io import retries

pytest.importorskip("zarr", reason="the optional package zarr is not installed")
pytest.importorskip("aiohttp", reason="the optional package aiohttp is not installed")

FORMATS = ("npy", "npz", "zarr", "h5", "parquet", "arrow", "safetensors")
X = np.random.default_rng(0).random((120, 90))
KEYS = {"npy": "", "zarr": ""}


class Flaky(http.server.ThreadingHTTPServer):
    """Serves a folder.

    Attributes:
        failing: so many of the next requests fail.
        how: with a status, without a word, or in the middle.
        ranges: whether it gives parts of files.
    """

    daemon_threads = True
    failing, how, ranges = 0, "500", True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(("127.0.0.1", 0), Answer)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that was cut off is no news."""


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Flaky

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""

    def cut(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def do_HEAD(self) -> None:
        self.answer(False)

    def do_GET(self) -> None:
        self.answer(True)

    def answer(self, body: bool) -> None:
        server, path = self.server, self.server.folder / self.path.lstrip("/")
        fails = body and server.failing > 0
        server.failing -= fails
        if fails and server.how != "half":
            self.cut() if server.how == "reset" else self.send_error(int(server.how))
            return
        if not path.is_file():
            self.send_error(404)
            return
        content, wanted = path.read_bytes(), self.headers.get("Range")
        whole = len(content)
        if wanted and server.ranges:
            first, _, last = wanted.partition("=")[2].partition("-")
            content = content[int(first) : int(last or whole) + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{int(first) + len(content) - 1}/{whole}")
        else:
            self.send_response(200)
        if server.ranges:
            self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content[: len(content) // 2] if fails else content)
        if fails:
            self.wfile.flush()
            self.cut()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flaky]:
    folder = tmp_path_factory.mktemp("served")
    for suffix in FORMATS:
        tw.run(tw.sink(tw.source(X), folder / f"x.{suffix}", key=KEYS.get(suffix, "k")))
    made = Flaky(folder)
    yield made
    made.shutdown()
    made.server_close()


_NUMBERS = itertools.count()


def address(server: Flaky, suffix: str) -> str:
    """A URL that nobody has asked for, so that no cache answers."""
    name = f"{next(_NUMBERS)}.{suffix}"
    os.symlink(server.folder / f"x.{suffix}", server.folder / name)  # noqa: PTH211
    return f"http://127.0.0.1:{server.server_port}/{name}"


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("how", ["500", "503", "reset", "half"])
def test_a_server_that_fails_twice_is_asked_again(
    server: Flaky, suffix: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "RETRY_SECONDS", (0.01, 0.02, 0.05))
    server.how, server.ranges = how, True
    for when in ("described", "run"):
        server.failing = 2 * (when == "described")
        x = tw.source(address(server, suffix), key=KEYS.get(suffix, "k"))
        server.failing = 2 * (when == "run")
        np.testing.assert_array_equal(tw.run(tw.plan(x * 2, tw.machines(2, memory="1MiB"))), X * 2)


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_server_without_ranges_gives_whole_files(server: Flaky, suffix: str) -> None:
    server.failing, server.ranges = 0, False
    x = tw.source(address(server, suffix), key=KEYS.get(suffix, "k"))
    np.testing.assert_array_equal(tw.run(x[7:90] * 2), X[7:90] * 2)


@pytest.mark.parametrize("suffix", FORMATS)
def test_what_will_not_pass_is_said_at_once(server: Flaky, suffix: str) -> None:
    server.failing, server.ranges, began = 0, True, time.monotonic()
    with pytest.raises(StorageError, match=r"source\('http"):
        tw.source(f"http://127.0.0.1:{server.server_port}/none.{suffix}", key=KEYS.get(suffix, "k"))
    server.failing, server.how = 1 << 30, "403"
    with pytest.raises(StorageError, match=r"source\('http"):
        tw.source(address(server, suffix), key=KEYS.get(suffix, "k"))
    server.failing = 0
    for content in (b"", b"<html>no such page</html>", np.random.default_rng(0).bytes(5000)):
        name = f"{next(_NUMBERS)}.{suffix}"
        (server.folder / name).write_bytes(content)
        with pytest.raises(StorageError, match=r"source\('http"):
            tw.source(f"http://127.0.0.1:{server.server_port}/{name}", key=KEYS.get(suffix, "k"))
    assert time.monotonic() - began < sum(retries.RETRY_SECONDS)


@pytest.mark.parametrize("suffix", FORMATS)
def test_stores_of_every_kind_hold_what_was_stored(tmp_path: Path, suffix: str) -> None:
    key = KEYS.get(suffix, "k")
    for url in (f"memory://urls/{next(_NUMBERS)}.{suffix}", f"file://{tmp_path}/y.{suffix}"):
        tw.run(tw.sink(tw.source(X) + 1, url, key=key))
        np.testing.assert_array_equal(tw.run(tw.plan(tw.source(url, key=key)[::-1], 3)), X[::-1] + 1)
    assert [path.name for path in tmp_path.iterdir()] == [f"y.{suffix}"]
