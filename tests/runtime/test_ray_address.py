"""Addresses of clusters: what is none is refused, and what does not answer is an error in time."""

import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_local import plan_of
from test_ray import needs_ray
from test_ray import pytestmark as pytestmark

import tileweave as tw
from tileweave import graph as g
from tileweave.errors import RunError
from tileweave.runtime import run_plan
from tileweave.runtime.ray import session

NO_CLUSTER = """
import numpy as np
from tileweave import graph as g, lower
from tileweave.errors import RunError
from tileweave.planner import machines, make_plan
from tileweave.runtime import run_plan
from tileweave.runtime.io import files as io
plan = make_plan(g.Graph.of(g.as_tensor(np.arange(3)) + 1), machines(1), lower.decide, io.atom)
try:
    run_plan(plan, runtime="ray", address="127.0.0.1:1")
except RunError as error:
    print(error)
"""

TOKENS = """
import os, sys
import tileweave as tw
from tileweave.errors import RunError
from tileweave.runtime.ray import session
y, address, right = tw.source([1, 2]) + 1, sys.argv[1], sys.argv[2]
for mode, token in (("token", right[::-1]), ("token", ""), ("disabled", right)):
    os.environ |= {"RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": token}
    try:
        tw.run(y, runtime="ray", address=address)
    except RunError as error:
        print(error)
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": right}
print("taken", session._ask(address, False))
"""


@needs_ray
@pytest.mark.parametrize("address", ["local", "", "somewhere", 6379])
def test_what_is_no_address_is_refused(address: Any) -> None:
    plan = plan_of(g.as_tensor(np.arange(3)) + 1)
    with pytest.raises(RunError, match="is no address of a cluster"):
        session._attach(session.load(), address)
    with pytest.raises(RunError, match="a Ray cluster is named for the local runtime"):
        run_plan(plan, address=address)
    with pytest.raises(RunError, match="a Ray cluster is named for the local runtime"):
        tw.run(tw.source(np.ones(3)) + 1, address=address)


@needs_ray
@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_port_where_something_else_listens_is_an_error(monkeypatch: pytest.MonkeyPatch, says: bytes) -> None:
    """Ray itself would wait for it without end."""
    monkeypatch.setattr(session, "CONNECT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as line:
                line.sendall(says)
                line.recv(1024)
                threading.Event().wait(1.0)

        other = threading.Thread(target=answer)
        other.start()
        with pytest.raises(RunError, match="no cluster answers at") as caught:
            session._attach(session.load(), f"127.0.0.1:{server.getsockname()[1]}")
        other.join()
    assert isinstance(caught.value.__cause__, OSError)


@needs_ray
def test_a_cluster_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", NO_CLUSTER], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert "no cluster answers at '127.0.0.1:1'" in done.stdout


@pytest.mark.usefixtures("ray_cluster")
def test_a_wrong_token_is_an_error_and_the_right_one_is_taken_afterwards() -> None:
    """In a process of its own: one that has no token would be ended by Ray."""
    host, port = session.connect(2).control
    ask = [sys.executable, "-c", TOKENS, f"{host}:{port}", session._TOKEN]
    done = subprocess.run(ask, capture_output=True, text=True, timeout=120)
    lines = done.stdout.splitlines()
    first = f"run(plan, address): the cluster at '{host}:{port}' and this process do not agree on a token"
    assert [line for line in lines if not line.startswith(" ")] == [first] * 3 + ["taken None"], done.stderr
    assert lines[1:4] == [
        "  RAY_AUTH_MODE        'token'", "  RAY_AUTH_TOKEN       of 32 characters", "  RAY_AUTH_TOKEN_PATH  not set"
    ]  # fmt: skip
    assert session._TOKEN not in done.stdout
