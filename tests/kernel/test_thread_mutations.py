"""Single faults in dispatched kernels: the checked fibers name the rule and the user's line of each.

The faults are made in the thread program, after dispatch: every synchronisation deleted, counts, bytes, parities and
pending groups perturbed, masks dropped. A barrier of one warp before an arrival is not needed where wgmma's own wait
has joined the warp. Faults of addresses, boxes and descriptors are named without a run: they are held against the
layouts of the tensors that they speak of.
"""

import shutil
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from tileweave.backends.cuda.printer.entry import arguments, lowered, run_program
from tileweave.errors import BackendError, VerifyError
from tileweave.kernel.dispatch.layouts.claims import claims, verify_claims

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[2] / "examples" / "kernels")]
products, mutants = import_module("matmul"), import_module("mutants")

needs_gpp = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
EQUIVALENT = {"no bar.warp.sync"}


def outcome(kernel, program, arrays, exact):
    """The rule and the line that a fault breaks; ``value`` where only the result shows it; empty where nothing does."""
    copies = [a.copy() for a in arrays[:-1]] + [np.zeros_like(arrays[-1])]
    for broken in claims(program):
        return f"{broken.rule} {broken.at}"
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
    a, b = (random.integers(-3, 4, s).astype(np.float16) for s in ((150, k), (96, k)))
    c = np.zeros((150, 96), np.float16)
    kernel = getattr(products, name).trace(a, b, c, **options)
    return kernel, lowered(kernel, arch).program, (a, b, c), a.astype(float) @ b.astype(float).T


#: Module, kernel, arrays and options, targets, and how many faults there are at least.
MISPLACED = [
    ("matmul", "matmul_roles", ((150, 520), (90, 520), (150, 90)), {"bm": 128, "bn": 64, "stages": 3}, "sm_90a", 80),
    ("matmul", "matmul", ((150, 520), (90, 520), (150, 90)), {"bm": 64, "bn": 64, "bk": 64}, "sm_80", 25),
    ("gemm_cp_async", "gemm_cp_async", ((100, 200), (90, 200), (100, 90)), {}, "sm_80", 20),
    ("attention", "attention", ((2, 100, 64),) * 4, {}, "sm_80", 20),
    ("transpose", "transpose", ((70, 45), (45, 70)), {}, "sm_80", 8),
    ("stencil", "stencil", ((50, 70), (50, 70)), {}, "sm_80", 10),
    ("tensor_memory", "matmul_tensor", ((150, 264), (90, 264), (150, 90)), {"bn": 32, "stages": 2}, "sm_100a", 100),
    ("tensor_memory", "matmul_pair", ((300, 264), (90, 264), (300, 90)), {"bn": 64, "stages": 2}, "sm_100a", 100),
]


@pytest.mark.parametrize(("module", "name", "shapes", "options", "arch", "least"), MISPLACED)
def test_what_goes_elsewhere_than_its_layout_says_is_named(module, name, shapes, options, arch, least):
    kernel = getattr(import_module(module), name).trace(*(np.zeros(s, np.float16) for s in shapes), **options)
    program = lowered(kernel, arch).program
    assert not list(claims(program))
    rules, total = Counter(), 0
    for what, line, faulty in mutants.misplaced(program):
        total += 1
        with pytest.raises(VerifyError) as caught:
            verify_claims(faulty)
        assert line is None or caught.value.line == line, what
        rules[caught.value.rule] += 1
    print(name, arch, total, dict(rules))  # the table: pytest -s
    assert total >= least


@needs_gpp
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arch", "options", "least"),
    [
        ("matmul_roles", "sm_90a", {"bm": 128, "bn": 64, "stages": 3}, 30),
        ("matmul", "sm_80", {"bm": 64, "bn": 64, "bk": 64, "stages": 3}, 10),
    ],
)
def test_every_fault_is_named(name, arch, options, least):
    kernel, program, arrays, exact = case(name, arch, 520, **options)
    table = [(what, outcome(kernel, faulty, arrays, exact)) for what, _, faulty in mutants.mutants(program)]
    assert len(table) >= least
    for what, found in table:
        print(f"{what}: {found or 'nothing'}")
        assert found or what in EQUIVALENT
        assert found != "value"


@needs_gpp
@pytest.mark.parametrize(
    ("fault", "rule"),
    [("no cp.async.wait_group", "uninitialised"), ("no bar.sync", "race"), ("no mask on cp.async", "out-of-bounds")],
)
def test_faults_of_a_pipeline(fault, rule):
    kernel, program, arrays, exact = case("matmul", "sm_80", 136, bm=64, bn=64, bk=64, stages=3)
    faulty = next(one for what, _, one in mutants.mutants(program) if what.startswith(fault))
    assert outcome(kernel, faulty, arrays, exact).startswith(rule)


@needs_gpp
@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        ("no cp.async.bulk.commit_group", "bulk-left"),
        ("no cp.async.bulk.wait_group", "bulk-left"),
        ("no fence.proxy.async", "proxy-fence"),
    ],
)
def test_faults_of_the_way_out(fault, rule):
    kernel, program, arrays, exact = case("matmul_roles", "sm_90a", 72, bm=128, bn=64, stages=2)
    faulty = next(one for what, _, one in mutants.mutants(program) if what == fault)
    assert outcome(kernel, faulty, arrays, exact).startswith(rule)
