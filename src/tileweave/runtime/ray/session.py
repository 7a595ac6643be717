"""The connection to a Ray cluster: one that runs already, or a quiet local one of our own.

Source: own.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import secrets
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tileweave.backends.base import backends
from tileweave.backends.host import available_threads
from tileweave.errors import RunError
from tileweave.kept import lock_of_process
from tileweave.runtime.ray.watchdog import Watchdog, clear, end, family, naming

CONNECT_SECONDS = 5.0
"""How long a cluster may take to answer at an address."""

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node of a cluster.

    Args:
        id: as Ray knows it.
        host: its name.
        cores: that Ray may use.
        store_bytes: of its object store.
    """

    id: str
    host: str
    cores: int
    store_bytes: int


@dataclass(frozen=True, slots=True)
class RaySession:
    """A connection to a cluster.

    Args:
        own: whether we started the cluster, and so end it.
        address: that the user gave.
        nodes: those that have a core.
        control: host and port of the cluster's control service.
    """

    own: bool
    address: str | None
    nodes: tuple[ClusterNode, ...]
    control: tuple[str, int]

    @property
    def cores(self) -> int:
        """Of the whole cluster."""
        return sum(node.cores for node in self.nodes)

    def node(self, machine: int) -> ClusterNode:
        """Where a machine of a plan is, for as long as that node lives."""
        return self.nodes[machine % len(self.nodes)]

    @property
    def one_host(self) -> bool:
        """Whether every node runs on the driver's own host."""
        return all(node.host == socket.gethostname() for node in self.nodes)

    def answers(self) -> bool:
        """Whether the control service takes connections, and what we started still runs."""
        if self.own and _dead():
            return False
        try:
            socket.create_connection(self.control, 1.0).close()
        except OSError:
            return False
        return True

    def has_cores(self, count: int) -> bool:
        """Whether a node lives that has so many cores: Ray waits without end for one to come."""
        return any(node["Alive"] and node["Resources"].get("CPU", 0) >= count for node in load().nodes())


_OPEN: RaySession | None = None
_WATCHDOG: Watchdog | None = None
_TOKEN = secrets.token_hex(16)
_CONNECTING = lock_of_process(threading.RLock)
"""Ray itself bears no two threads that start it at once."""


def load() -> Any:
    """Ray, loaded on first use.

    Raises:
        RunError: it is not installed.
    """
    try:
        import ray
    except ImportError:
        raise RunError(
            "run(plan, runtime='ray')", "Ray is not installed", legal="pip install 'tileweave[ray]'"
        ) from None
    return ray


def connect(threads: int | None = None, address: str | None = None) -> RaySession:
    """The open session, or a new one: to the cluster at an address, else to a local cluster that is started here.

    A session stays open for the next run and is closed when the process ends, or by `shutdown`.
    """
    with _CONNECTING:
        return _connected(threads, address)


def _connected(threads: int | None, address: str | None) -> RaySession:
    global _OPEN
    ray = load()
    if _OPEN is not None:
        if _OPEN.address == address and ray.is_initialized() and _OPEN.answers():
            return _OPEN
        shutdown()
    try:
        with _own_handler():
            if ray.is_initialized():  # the program's own session; it stays the program's
                _OPEN = _session(ray, False, address)
            elif address is not None:
                _OPEN = _attach(ray, address)
            else:
                _OPEN = _start(ray, threads or available_threads())
        if _OPEN.own:
            watch(services=_started())
            # The first task of a process asks the control service for more. All workers of the cluster load what they
            # need now, side by side, not each with its first unit; one that has done so is enough to go on.
            ready, _ = ray.wait([ray.remote(_made_ready).remote() for _ in range(_OPEN.cores)], timeout=READY_SECONDS)
            if not ready:
                problem = f"no worker of the local cluster has started in {READY_SECONDS:.0f} s"
                raise RunError("run(plan, runtime='ray')", problem, legal="a less busy machine")
            ray.get(ready)
    except BaseException:
        shutdown()
        raise
    return _OPEN


def address_in_use(address: str | None) -> str | None:
    """The address by which the open session goes on; without a session, the one that is given."""
    return _OPEN.address if _OPEN is not None else address


@contextmanager
def _own_handler() -> Iterator[None]:
    """What the program does at a request to end stays in force, in place of Ray's own, which aborts a process that has
    not ended within three seconds, as one with a cluster to end may not have."""
    before, held, library = signal.getsignal(signal.SIGTERM), ctypes.create_string_buffer(ACTION_BYTES), None
    if os.name == "posix":
        library = ctypes.CDLL(None)
        library.sigaction(signal.SIGTERM, None, held)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
        elif library is not None and signal.getsignal(signal.SIGTERM) is before:  # Python sets none in other threads
            library.sigaction(signal.SIGTERM, held, None)


ACTION_BYTES = 1 << 10
"""More than a C library's `struct sigaction` takes."""


IDLE_MILLISECONDS = 60_000
"""How long workers of a local cluster wait for work."""
READY_SECONDS = 120.0
"""How long the first worker of a local cluster may take to start and to load this package."""


def _made_ready() -> None:
    """In a worker, which has loaded this package to find the function: the kernels' backend is loaded too."""
    backends()


def watch(**state: Any) -> None:
    """What a process beside this one removes, should this one be killed: `folders` with temporary files, and so on."""
    global _WATCHDOG
    if _WATCHDOG is None:
        _WATCHDOG = Watchdog()
    _WATCHDOG.tell(**state)


def _attach(ray: Any, address: str) -> RaySession:
    legal = "host:port of a running Ray cluster, auto for the one of this host, or none to start a local one"
    if not isinstance(address, str) or (address != "auto" and ":" not in address):
        raise RunError("run(plan, address)", f"{address!r} is no address of a cluster", legal=legal)
    problem = f"no cluster answers at {address!r}"
    try:
        if "://" not in address:
            control = _control(address)
            host, _, port = control.rpartition(":")
            _greet(host.strip("[]"), int(port))  # Ray itself waits long, for what says nothing without end
            problem = f"what answers at {address!r} takes no program of this process"
            _ask(control, address == "auto")
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except Exception as error:
        inputs = {"cause": f"{type(error).__name__}: {error}"}
        if type(error).__name__ == "AuthenticationError":  # Ray has that class from version 2.52 on
            problem = f"the cluster at {address!r} and this process do not agree on a token"
            inputs = {name: _setting(name) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")}
            legal = "RAY_AUTH_MODE=token, and the cluster's token as RAY_AUTH_TOKEN or in the file RAY_AUTH_TOKEN_PATH"
        raise RunError("run(plan, address)", problem, inputs=inputs, legal=legal) from error
    return _session(ray, False, address)


def _setting(name: str) -> str:
    """Of the environment, as an error shows it: no token is shown."""
    value = os.environ.get(name)
    return "not set" if value is None else f"of {len(value)} characters" if name == "RAY_AUTH_TOKEN" else repr(value)


def _control(address: str) -> str:
    """Host and port of the control service at an address; of ``auto``, as Ray finds it."""
    from ray._private import services

    return str(services.canonicalize_bootstrap_address_or_die(None)) if address == "auto" else address


def _ask(control: str, found: bool) -> None:
    """Asks a control service once who it is, with this process's token; `ray.init` would ask for twenty seconds.

    Args:
        control: its host and port.
        found: by Ray itself, which then takes a token that lies where it looks for one.

    Raises:
        Exception: one of Ray's: it takes no token of this process, or does not say who it is.
    """
    from ray import _raylet

    internal: Any = _raylet
    with suppress(ImportError):  # Ray has tokens from version 2.52 on
        from ray._private.authentication import authentication_token_setup as tokens

        internal.Config.initialize("")  # the environment is read again: it may have changed since a token was refused
        internal.AuthenticationTokenLoader.instance().reset_cache()
        if found:
            tokens.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        tokens.ensure_token_if_auth_enabled(create_token_if_missing=False)  # a client that has none ends the process
    internal.GcsClient(address=control)


def _greet(host: str, port: int) -> None:
    """Whether an HTTP/2 server answers, as a cluster's control service is: such a server says its settings at once.

    Raises:
        OSError: nothing answers, or what does is no such server.
    """
    with socket.create_connection((host, port), CONNECT_SECONDS) as line:
        if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
            return  # it would answer nobody without a certificate
        line.settimeout(CONNECT_SECONDS)
        line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + SETTINGS + b"\0" + b"\0\0\0\0")
        head = b""
        while len(head) < 4:
            said = line.recv(64)
            if not said:
                break
            head += said
        if head[3:4] != SETTINGS:
            raise ConnectionError(f"port {port} is no control service of a cluster")


SETTINGS = b"\4"
"""The kind of an HTTP/2 frame of settings, behind the three bytes of its length."""


def _session(ray: Any, own: bool, address: str | None) -> RaySession:
    nodes = [
        ClusterNode(
            n["NodeID"],
            n["NodeManagerHostname"],
            int(n["Resources"].get("CPU", 0)),
            int(n["Resources"].get("object_store_memory", 0)),
        )
        for n in ray.nodes()
        if n["Alive"]
    ]
    able = tuple(node for node in nodes if node.cores >= 1)
    if not able:
        raise RunError("run(plan, runtime='ray')", "the cluster has no node with a core", legal="a node with a core")
    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    return RaySession(own, address, able, (host.strip("[]"), int(port)))


def _start(ray: Any, threads: int) -> RaySession:
    """A quiet local cluster, guarded by a token of this process.

    Ray reads these settings from the environment, and so do the processes that it starts. A driver that waits inside
    Ray for a control service that is gone is ended by Ray after 20 seconds, not after a minute. Nobody asks for records
    of tasks; a driver that ends would wait up to half a minute for a control service that is gone to take them. Workers
    that have loaded this package wait a minute for the next run: Ray would end them after a second where actors of the
    program take their cores, and new ones take as long to start as a small run does.
    """
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_IGNORE_UNHANDLED_ERRORS": "1"}
    quiet["RAY_task_events_report_interval_ms"] = "0"
    quiet["RAY_idle_worker_killing_time_threshold_ms"] = str(IDLE_MILLISECONDS)
    wanted = {**quiet, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_gcs_rpc_server_reconnect_timeout_s": "20"}
    if "RAY_AUTH_TOKEN_PATH" not in os.environ:
        wanted["RAY_AUTH_TOKEN"] = _TOKEN  # else Ray would write one into the user's home
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
    problem, legal, began = "no local cluster could be started", "", time.monotonic()
    try:
        try:
            return _begin(ray, threads)
        except Exception:
            seconds = time.monotonic() - began
            if seconds < LATE_SECONDS:
                raise
            log = logging.getLogger("tileweave")
            log.warning("the local Ray cluster has not started in %.0f s and is started once again", seconds)
            problem += f" in two attempts, the first of {seconds:.0f} s"
            legal = "a less busy machine, or address= of a cluster that runs"
            return _begin(ray, threads)
    except Exception as error:
        cause = {"cause": f"{type(error).__name__}: {error}"}
        raise RunError("run(plan, runtime='ray')", problem, inputs=cause, legal=legal) from error


LATE_SECONDS = 10.0
"""A start that has failed after so long was late, as on a busy machine: Ray gives its services some 30 seconds."""


ENDED_SECONDS = 5.0
"""How long the system may take to end a process."""


def _begin(ray: Any, threads: int) -> RaySession:
    with _on_loopback(), _ended_where_it_fails(ray):
        start = partial(
            ray.init,
            address="local",
            _temp_dir=_scratch(),
            num_cpus=threads,
            include_dashboard=False,
            logging_level=logging.ERROR,
            log_to_driver=False,
            _node_ip_address=LOOPBACK,
        )
        start() if threading.current_thread() is threading.main_thread() else _in_thread_that_stays(start)
        return _session(ray, True, None)


def _in_thread_that_stays(work: Callable[[], object]) -> None:
    """Does it in a thread of its own: the system kills what Ray starts when the thread ends that started it."""
    failed, done = list[BaseException](), threading.Event()

    def live() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)
        done.set()
        if not failed:
            threading.Event().wait()  # as long as the process lives

    threading.Thread(target=live, name="tileweave-ray", daemon=True).start()
    done.wait()
    if failed:
        raise failed[0]


@contextmanager
def _ended_where_it_fails(ray: Any) -> Iterator[None]:
    """Of a start that fails, the processes end and the folder goes; Ray forgets those of a node that it gives up."""
    from ray._private.node import Node

    before, nodes = Node.__init__, list[Any]()

    def noted(self: Any, *given: Any, **named: Any) -> None:
        nodes.append(self)
        before(self, *given, **named)

    Node.__init__ = noted
    try:
        yield
    except BaseException:
        known = family(process for node in nodes for ids in _processes(node).values() for process in ids)
        begun = [info.process for node in nodes for infos in node.all_processes.values() for info in infos]
        ray.shutdown()
        end(known)
        for process in begun:
            with suppress(Exception):
                process.wait(ENDED_SECONDS)  # else the system keeps its number
        _clear_scratch()
        raise
    finally:
        Node.__init__ = before


_SCRATCH: Path | None = None
"""Where our own cluster has its sockets, logs and spilled objects."""


def _scratch() -> str | None:
    """A folder for our own cluster, which goes with it; None where sockets in it would have names that are too long."""
    global _SCRATCH
    if len(tempfile.gettempdir()) > LONGEST_FOLDER:
        return None
    _SCRATCH = Path(tempfile.mkdtemp(prefix="tileweave-ray-"))
    watch(scratch=[str(_SCRATCH)])
    return str(_SCRATCH)


def _clear_scratch() -> None:
    global _SCRATCH
    scratch, _SCRATCH = _SCRATCH, None
    if scratch is not None:
        if left := naming(str(scratch)):
            end(family(left))
        clear(scratch)


LONGEST_FOLDER = 16
"""Characters of the folder for temporary files: names of sockets have at most 103, some 85 of them Ray's and ours."""


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Ray takes the loopback address as it is, and so listens there alone; it would replace it by an interface's."""
    from ray._private import services

    before = services.resolve_ip_for_localhost
    services.resolve_ip_for_localhost = lambda host: host
    try:
        yield
    finally:
        services.resolve_ip_for_localhost = before


def shutdown() -> None:
    """Ends the session; a cluster that we started ends with it, and leaves nothing."""
    global _WATCHDOG
    close()
    watchdog, _WATCHDOG = _WATCHDOG, None
    if watchdog is not None:
        watchdog.close()


def close() -> None:
    """As `shutdown`, but the process beside this one stays: Ray may yet abort this one before it removes its files."""
    global _OPEN
    session, _OPEN = _OPEN, None
    if session is not None and (session.own or session.address is not None):
        services = _started() if session.own else {}
        known = family(process for ids in services.values() for process in ids)
        if session.own and _dead():  # others wait for it, and Ray for them; without a raylet Ray aborts this process
            end(family(process for name, ids in services.items() if name != "raylet" for process in ids))
        load().shutdown()
        end(known)  # a service that was killed has not ended its own
    _clear_scratch()
    if _WATCHDOG is not None:
        _WATCHDOG.tell(services={}, scratch=[])


def _started() -> dict[str, list[int]]:
    """The services of our own cluster, by name, as process ids."""
    return _processes(getattr(load()._private.worker, "_global_node", None))


def _processes(node: Any) -> dict[str, list[int]]:
    """Those that Ray has started for a node."""
    processes = getattr(node, "all_processes", None) or {}
    return {name: [info.process.pid for info in infos] for name, infos in processes.items()}


def _dead() -> bool:
    """Whether a service of our own cluster has ended."""
    node = getattr(load()._private.worker, "_global_node", None)
    return node is not None and bool(node.dead_processes())


atexit.register(shutdown)
