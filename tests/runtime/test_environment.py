"""Environments: named tensors between programs, in memory and in a folder; several programs under one budget."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from plans import misbehaving

import tileweave as tw
from tileweave.errors import GraphError, PlanError, RunError, StorageError, TileweaveError
from tileweave.planner import machines
from tileweave.runtime.environment import Environment, environment
from tileweave.runtime.ray import held
from tileweave.space import Box


@pytest.fixture(params=["memory", "folder"])
def env(request: pytest.FixtureRequest, tmp_path: Path) -> Environment:
    return environment(2, folder=tmp_path / "env" if request.param == "folder" else None)


def test_tensors_stay_between_programs(env: Environment, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.random((20, 6)), rng.random((6, 3))
    np.save(tmp_path / "x.npy", x)
    env.load("x", tmp_path / "x.npy")
    env.load("w", w)
    env.allocate("b", (3,), "float64", 0.5)
    env.apply({"y": tw.relu(env["x"] @ env["w"] - env["b"]), "norm": tw.sum(env["w"] * env["w"])})
    want = np.maximum(x @ w - 0.5, 0)
    np.testing.assert_allclose(env.read("y"), want)
    np.testing.assert_allclose(env.read("norm"), (w * w).sum())
    for _ in range(3):
        env.apply({"w": env["w"] * 0.5})
    np.testing.assert_allclose(env.read("w"), w / 8)
    np.testing.assert_allclose(env.read("y", Box((3, 1), (4, 2))), want[3:7, 1:3])
    env.export("y", tmp_path / "y.npz", key="y")
    np.testing.assert_allclose(np.load(tmp_path / "y.npz")["y"], want)
    env.drop("norm")
    assert list(env) == ["b", "w", "x", "y"] and "norm" not in env and len(env) == 4


def test_a_box_is_copied_between_tensors(env: Environment) -> None:
    a, b = np.arange(20.0).reshape(4, 5), np.zeros((3, 3))
    env.load("a", a)
    env.load("b", b)
    env.copy("a", Box((1, 2), (2, 3)), "b", (1, 0))
    b[1:3, 0:3] = a[1:3, 2:5]
    np.testing.assert_array_equal(env.read("b"), b)
    env.copy("a", Box((0, 0), (2, 5)), "a", (2, 0))  # of one tensor
    a[2:4] = a[0:2].copy()
    np.testing.assert_array_equal(env.read("a"), a)
    outside = [(Box((3, 0), (2, 2)), (0, 0)), (Box((0, 0), (2, 2)), (2, 2))]
    for box, at in [*outside, (Box((0, 0), (2, 0)), (4, 0)), (Box((9, 9), (0, 0)), (0, 0))]:  # without elements too
        with pytest.raises(GraphError, match="is no box inside"):
            env.copy("a", box, "b", at)
    for wrong in (Box((0,), (2,)), Box((3, 0), (2, 2)), (0, 1)):
        with pytest.raises(GraphError, match="is no box inside"):
            env.read("a", wrong)  # type: ignore[arg-type]
    env.allocate("n", (2, 2), "int32")
    with pytest.raises(GraphError, match="no int32"):
        env.copy("a", Box((0, 0), (1, 1)), "n", (0, 0))


def test_names_that_are_wrong_are_refused(env: Environment) -> None:
    env.load("x", np.ones(3))
    for name in ("", "../x", "a/b", ".x", 3):
        with pytest.raises(GraphError, match="no name"):
            env.load(name, np.ones(3))  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="there is no tensor 'y'"):
        env.read("y")
    with pytest.raises(GraphError, match="there is no tensor 'y'"):
        env["y"]
    with pytest.raises(GraphError, match="names no tensor"):
        env.apply({})


def test_a_program_that_fails_changes_no_name(env: Environment, tmp_path: Path) -> None:
    env.load("x", np.arange(4.0))
    broken = misbehaving(env["x"], tmp_path / "marks", fails_at=0)
    with pytest.raises(RunError, match="ArithmeticError"):
        env.apply({"x": env["x"] + 1, "z": broken})
    assert list(env) == ["x"]
    np.testing.assert_array_equal(env.read("x"), np.arange(4.0))


def test_the_budget_holds_tensors_and_programs_together() -> None:
    env = environment(machines(1, memory="1MiB"))
    env.allocate("x", (64, 1024), "float64")  # half of it
    with pytest.raises(RunError, match="do not fit"):
        env.allocate("y", (128, 1024), "float64")
    with pytest.raises((PlanError, TileweaveError)):
        env.apply({"y": tw.exp(env["x"]) + 1, "z": tw.exp(env["x"]) * 2})
    env.apply({"s": tw.sum(tw.exp(env["x"]), 1)})
    np.testing.assert_allclose(env.read("s"), np.full(64, 1024.0))
    assert env.held_bytes == 64 * 1024 * 8 + 64 * 8
    env.drop("x")
    env.allocate("y", (100, 1024), "float64")


def test_programs_of_many_threads_see_whole_tensors() -> None:
    env = environment(machines(2, memory="4MiB"))
    env.load("x", np.zeros((200, 100)))
    wrong: list[float] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            env.apply({f"spread{threading.get_ident()}": tw.max(env["x"]) - tw.min(env["x"])})
            wrong.extend(v for v in [float(env.read(f"spread{threading.get_ident()}"))] if v)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(40):
        env.apply({"x": env["x"] + 1})
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong
    assert (env.read("x") == 40).all() and env._promised == env._running == 0 and not env._reading


def test_another_process_goes_on_with_the_tensors(tmp_path: Path) -> None:
    environment(folder=tmp_path / "env").load("x", np.arange(6.0))
    program = (
        "import sys, tileweave as tw\n"
        "from tileweave.runtime.environment import environment\n"
        "env = environment(3, folder=sys.argv[1])\n"
        "env.apply({'y': env['x'] * 2})\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "env")], check=True, timeout=60)
    env = environment(folder=tmp_path / "env")
    np.testing.assert_array_equal(env.read("y"), np.arange(6.0) * 2)
    assert list(env) == ["x", "y"] and not [p for p in (tmp_path / "env").iterdir() if p.name.startswith(".")]


def test_placements_are_planned_with() -> None:
    env = environment(machines(4, memory="1GiB"))
    env.load("x", np.ones((64, 64)), place="balanced")
    env.load("w", np.ones((64, 64)))
    plan = env.plan({"y": env["x"] @ env["w"]})
    assert {source.name for source in plan.residents} == {"x"}
    env.apply({"y": env["x"] @ env["w"]})
    assert (env.read("y") == 64).all()


def test_a_source_of_the_users_own_keeps_its_values() -> None:
    env = environment()
    env.load("x", np.ones(3))
    env.apply({"y": env["x"] + tw.source(np.full(3, 5.0), name="x")})
    assert env.read("y").tolist() == [6.0, 6.0, 6.0]


NODES = """
import os, signal, sys, time
import numpy as np
import tileweave as tw
from ray.cluster_utils import Cluster
from tileweave.errors import RunError
from tileweave.space import Box
from tileweave.runtime.ray.watchdog import family
quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 200, "health_check_timeout_ms": 3000,
         "health_check_failure_threshold": 5}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": quick})
nodes = [cluster.add_node(num_cpus=1) for _ in range(3)]
options = {"runtime": "ray", "address": cluster.address}
x = np.random.default_rng(0).random((1000, 400))
np.save(sys.argv[1] + "/x.npy", x)
copied, computed = tw.environment(2, **options, copies=2), tw.environment(2, **options, lineage=True)
once = tw.environment(2, **options, copies=1)
for env in (copied, computed, once):
    env.load("x", sys.argv[1] + "/x.npy")
    env.allocate("one", (400,), "float64", 1.0)
    env.apply({"y": env["x"] * 2 + env["one"]})
    env.apply({"y": env["y"] + 1})
    env.copy("x", Box((0, 0), (1, 400)), "y", (999, 0))
want = x * 2 + 2
want[999] = x[0]
held = copied._versions["y"].held
assert len(held.blocks) == 2 and all(len({node for node, _ in copies}) == 2 for _, copies in held.blocks)

def check(env):
    np.testing.assert_array_equal(env.read("y"), want)
    np.testing.assert_array_equal(env.read("x"), x)
    np.testing.assert_array_equal(env.read("y", Box((240, 7), (520, 3))), want[240:760, 7:10])
    env.apply({"s": tw.sum(env["y"], 0)})
    np.testing.assert_allclose(env.read("s"), want.sum(0))

for process in family([os.getpid()]):  # workers hold nothing themselves
    with open(f"/proc/{process}/cmdline", "rb") as file:
        if file.read().startswith((b"ray::IDLE", b"ray::work", b"ray::_kept")):
            os.kill(process, signal.SIGKILL)
for env in (copied, computed, once):
    check(env)
import ray
mine = ray.get_runtime_context().get_node_id()  # with it, Ray would end this process
holders = {node for _, copies in once._versions["y"].held.blocks for node, _ in copies}
gone = sorted((node for node in nodes if node.node_id != mine), key=lambda node: node.node_id not in holders)
for node in gone[:2]:
    before = len(copied._nodes.living())
    cluster.remove_node(node, allow_graceful=False)
    while len(copied._nodes.living()) == before:
        time.sleep(0.1)
    check(copied)
    check(computed)
assert all(len({node for node, _ in copies}) == 2 for _, copies in copied._versions["y"].held.blocks)
try:
    once.read("y")
except RunError as error:
    print("refused", str(error).splitlines()[0])
print("right", flush=True)
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_tensors_on_nodes_outlive_a_node_by_copies_or_by_lineage(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the optional package ray is not installed")
    words = [sys.executable, "-c", NODES, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280)
    assert "right" in done.stdout.splitlines(), (done.stdout, done.stderr)
    assert "refused environment: the nodes that held tensor 'y' are gone" in done.stdout


def test_copies_and_lineage_need_a_cluster(tmp_path: Path) -> None:
    for options in ({"copies": 2}, {"lineage": True}, {"copies": 2, "folder": tmp_path, "runtime": "ray"}):
        with pytest.raises(RunError, match="lie on no node of a cluster"):
            environment(2, **options)
    with pytest.raises(RunError, match="0 is no number of copies"):
        environment(2, runtime="ray", copies=0)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_tensors_lie_on_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a node has lost is computed again from the programs that made it; a long row of programs is cut."""
    from tileweave.runtime import environment as module

    monkeypatch.setattr(module, "LONGEST_LINEAGE", 3)
    env = environment(2, runtime="ray", lineage=True)
    x = np.random.default_rng(1).random((300, 500))
    env.load("x", x)
    for _ in range(2):
        env.apply({"x": env["x"] + 1})
    assert env._versions["x"].depth == 3
    monkeypatch.setattr(env._nodes, "_read", lambda references: (_ for _ in ()).throw(held.Lost))
    np.testing.assert_array_equal(env.read("x"), x + 1 + 1)
    monkeypatch.undo()
    monkeypatch.setattr(module, "LONGEST_LINEAGE", 3)
    env.apply({"x": env["x"] + 1})
    assert env._versions["x"].depth == 0 and env.held_bytes == x.nbytes
    with pytest.raises(RunError, match="the cluster has 1 nodes"):
        environment(2, runtime="ray", copies=2)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_programs_on_nodes_leave_their_results_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks go from node to node: this process sends none that a program reads, and takes none that it makes."""
    from tileweave.runtime.ray.held import Nodes

    env, x = environment(2, runtime="ray", copies=1), np.random.default_rng(2).random((700, 300))
    w = np.random.default_rng(3).random((300, 40))
    np.save(tmp_path / "x.npy", x)
    env.load("x", tmp_path / "x.npy")
    env.load("w", w)
    with monkeypatch.context() as away:
        seen = list[int]()
        away.setattr(
            Nodes, "_read", lambda self, references: (_ for _ in ()).throw(AssertionError("read by the driver"))
        )
        put = env._nodes.ray.put
        away.setattr(env._nodes.ray, "put", lambda value: seen.append(getattr(value, "nbytes", 0)) or put(value))
        env.apply({"y": env["x"] @ env["w"], "t": tw.transpose(env["x"]) + 1.0, "s": tw.sum(env["x"])})
        env.apply({"z": env["y"][10:-10, ::2] * 2, "t": env["t"][:, 1:], "u": env["x"]})
        assert sum(seen) == 0
    np.testing.assert_allclose(env.read("y"), x @ w)
    np.testing.assert_allclose(env.read("z"), (x @ w)[10:-10, ::2] * 2)
    np.testing.assert_array_equal(env.read("t"), x.T[:, 1:] + 1.0)
    np.testing.assert_array_equal(env.read("t", Box((3, 4), (5, 600))), (x.T[:, 1:] + 1.0)[3:8, 4:604])
    np.testing.assert_allclose(env.read("s"), x.sum())
    env.copy("w", Box((0, 0), (2, 2)), "u", (698, 298))
    changed = x.copy()
    changed[698:, 298:] = w[:2, :2]
    np.testing.assert_array_equal(env.read("u"), changed)


def test_a_copy_in_a_folder_is_seen_whole_or_not_at_all(tmp_path):
    env = environment(1, folder=tmp_path)
    env.load("x", np.arange(12.0).reshape(3, 4))
    before = np.load(tmp_path / "x.npy", mmap_mode="r")
    env.copy("x", Box((0, 0), (2, 2)), "x", (1, 1))
    assert before.tolist() == np.arange(12.0).reshape(3, 4).tolist()
    assert env.read("x").tolist() == [[0, 1, 2, 3], [4, 0, 1, 7], [8, 4, 5, 11]]
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


def test_a_file_cannot_be_the_folder(tmp_path):
    (tmp_path / "taken").write_text("x")
    with pytest.raises(StorageError, match=r"environment\(folder\): '.*taken' cannot be a folder"):
        tw.environment(folder=str(tmp_path / "taken"))
    assert (tmp_path / "taken").read_text() == "x"


def test_an_environment_of_no_runtime_is_refused():
    with pytest.raises(RunError, match="there is no runtime 'x'"):
        tw.environment(2, runtime="x")
