"""Tests about the tests, and about what an import costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

TESTS = Path(__file__).parent
STRUCTURE = TESTS.parent / "tools" / "structure.py"
HEAVY = ("ray", "zarr", "torch", "llvmlite", "sklearn", "matplotlib", "scipy", "jax", "fsspec", "opt_einsum", "rich")


def checks_something(function: ast.AST, helpers: set[str]) -> bool:
    """Whether a function asserts, expects an error, or calls a helper that does."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("raises", "fail") or name.startswith("assert_") or name in helpers:
                return True
    return False


def helpers_that_check(trees: list[ast.Module], fixtures: set[str]) -> set[str]:
    """Names of functions in the test files that check something, directly or through one another."""
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    found = set(fixtures)
    while True:
        more = {f.name for f in functions if not f.name.startswith("test_") and checks_something(f, found)} - found
        if not more:
            return found
        found |= more


def unchecked(trees: dict[str, ast.Module]) -> list[str]:
    """The test functions that check nothing."""
    helpers = helpers_that_check(list(trees.values()), {"golden"})
    return [
        f"{path}::{node.name}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and not checks_something(node, helpers)
    ]


def test_every_test_asserts_something():
    trees = {str(p.relative_to(TESTS)): ast.parse(p.read_text("utf-8")) for p in sorted(TESTS.rglob("*.py"))}
    assert trees
    assert unchecked(trees) == []


def test_a_test_without_an_assertion_is_found():
    tree = ast.parse(
        "def check(x):\n    compare(x)\n\ndef test_nothing():\n    check(3)\n\ndef test_some():\n    assert 3\n"
    )
    assert unchecked({"bad.py": tree}) == ["bad.py::test_nothing"]


@pytest.mark.parametrize(
    ("module", "light"), [("tileweave", True), ("tileweave.space", True), ("tileweave.errors", True)]
)
def test_an_import_loads_no_heavy_package(module, light):
    code = f"import sys, {module}; print(*sorted(name for name in sys.modules if name.split('.')[0] == name))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    loaded = set(out.stdout.split())
    assert light and not loaded & set(HEAVY)


def test_space_pulls_nothing_else_in():
    code = "import sys, tileweave.space; print(*sorted(n for n in sys.modules if n.startswith(('tileweave', 'numpy'))))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    packages = {name.split(".")[1] for name in out.stdout.split() if name.startswith("tileweave.")}
    assert packages <= {"errors", "space", "version"}


def test_graph_needs_no_compiler():
    code = "import sys, tileweave.graph; print(*sorted(n for n in sys.modules if '.' not in n))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert not set(out.stdout.split()) & (set(HEAVY) - {"opt_einsum"})


def test_plans_and_runs_load_no_notation_of_layouts():
    loaded = "print(*sorted(n for n in sys.modules if n.startswith('tileweave.')))"
    code = f"import sys, tileweave as tw; tw.plan, tw.run; {loaded}"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    packages = {".".join(name.split(".")[1:3]) for name in out.stdout.split()}
    assert "runtime.run" in packages
    assert not packages & {f"layout.{name}" for name in ("analysis", "text", "f2", "template", "notation")}


def test_no_property_fails_since_the_machine_is_busy():
    assert settings().deadline is None


def test_the_structure_holds():
    """No folder is crowded, no import runs in a cycle (inside functions too), no two public classes share a name."""
    done = subprocess.run([sys.executable, str(STRUCTURE), "check"], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout.strip()) == (0, "the structure holds"), done.stdout + done.stderr
