"""Single faults in dispatched kernels: the checked fibers name the rule and the user's line of each.

The faults are made in the thread program, after dispatch: every synchronisation deleted, counts, bytes, parities and
pending groups perturbed, masks dropped. Descriptors of wgmma show as wrong values, since hardware reads whatever lies
there; a barrier of one warp before an arrival is not needed where wgmma's own wait has joined the warp.
"""

import shutil
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from tileweave.backends.cuda.printer.entry import arguments, lowered, run_program
from tileweave.errors import BackendError

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[2] / "examples" / "kernels")]
products, mutants = import_module("matmul"), import_module("mutants").mutants

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
EQUIVALENT = {"no bar.warp.sync"}
VALUES = {"half the stride of A", "other swizzle of A"}


def outcome(kernel, program, arrays, exact):
    """The rule and the line that a fault breaks; ``value`` where only the result shows it; empty where nothing does."""
    copies = [a.copy() for a in arrays[:-1]] + [np.zeros_like(arrays[-1])]
    given, _ = arguments(kernel, program, dict(zip([p.name for p in kernel.params], copies, strict=True)))
    try:
        run_program(program, given, check=True, seconds=60)
    except BackendError as error:
        found = [f for f in error.facts.get("findings", ()) if not f.note]
        assert found, error
        assert ".py:" in found[0].place, found[0]
        return f"{found[0].rule} {found[0].place}"
    return "" if (copies[-1] == exact).all() else "value"


def case(name, arch, k, **options):
    random = np.random.default_rng(0)
    a, b = (random.integers(-3, 4, s).astype(np.float16) for s in ((150, k), (90, k)))
    c = np.zeros((150, 90), np.float16)
    kernel = getattr(products, name).trace(a, b, c, **options)
    return kernel, lowered(kernel, arch).program, (a, b, c), a.astype(float) @ b.astype(float).T


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arch", "options", "least"),
    [
        ("matmul_roles", "sm_90a", {"bm": 128, "bn": 64, "stages": 3}, 35),
        ("matmul", "sm_80", {"bm": 64, "bn": 64, "bk": 64, "stages": 3}, 10),
    ],
)
def test_every_fault_is_named(name, arch, options, least):
    kernel, program, arrays, exact = case(name, arch, 520, **options)
    table = [(what, outcome(kernel, faulty, arrays, exact)) for what, _, faulty in mutants(program)]
    assert len(table) >= least
    for what, found in table:
        print(f"{what}: {found or 'nothing'}")
        assert found or what in EQUIVALENT
        assert found != "value" or what in VALUES


@pytest.mark.parametrize(
    ("fault", "rule"),
    [("no cp.async.wait_group", "uninitialised"), ("no bar.sync", "race"), ("no mask on cp.async", "out-of-bounds")],
)
def test_faults_of_a_pipeline(fault, rule):
    kernel, program, arrays, exact = case("matmul", "sm_80", 136, bm=64, bn=64, bk=64, stages=3)
    faulty = next(one for what, _, one in mutants(program) if what.startswith(fault))
    assert outcome(kernel, faulty, arrays, exact).startswith(rule)
