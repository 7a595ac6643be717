"""Documents that were damaged: refused in the error format, or well-formed and run as the interpreter says."""

from __future__ import annotations

import json
import subprocess
import sys
from random import Random
from typing import Any

import numpy as np
import pytest
from random_programs import any_program, difference

from tileweave.backends.cpu import compile
from tileweave.errors import BackendError, TileweaveError, VerifyError
from tileweave.teir import byte_bounds, from_json, to_json
from tileweave.teir.ir import examples
from tileweave.teir.ir.dtypes import numpy_dtype
from tileweave.teir.ir.program import Invocation, Program
from tileweave.teir.ir.walk import axes_by_id, primitives_by_id, walk

SIZES = {letter: 2 + k % 3 for k, letter in enumerate("abcdkmnpqrstuvxyz")}
NUMBERS = (0, 1, -1, 2, 3, 7, 64, -4, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30)
OTHERS: tuple[Any, ...] = (
    None,
    True,
    False,
    "",
    "x0",
    "t0",
    "out",
    "Copy",
    "FP32",
    [],
    {},
    [[]],
    1.5,
    -0.0,
    "\u0000",
    "😀",
)
POINTS = 30_000
"""Programs that do more are compiled and not run."""


def documents() -> list[str]:
    return [to_json(getattr(examples, name)(SIZES)) for name in examples.__all__]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all values of a document."""
    found = [path]
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        found += places(inner, (*path, key))
    return found


def damaged(random: Random, text: str) -> str:
    """One to three changes: of a value, of a name, of the order; now and then of the text itself."""
    data = json.loads(text)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        path = random.choice(places(data)[1:])
        holder = data
        for key in path[:-1]:
            holder = holder[key]
        key, change = path[-1], random.random()
        if change < 0.35 and isinstance(holder[key], int):
            holder[key] = (
                random.choice(NUMBERS) if random.random() < 0.5 else holder[key] + random.choice((-4, -1, 1, 4))
            )
        elif change < 0.55:
            other = random.choice(places(data)[1:])
            value = data
            for step in other:
                value = value[step]
            holder[key] = json.loads(json.dumps(value))  # a value from elsewhere
        elif change < 0.7:
            holder[key] = random.choice(OTHERS)
        elif change < 0.8:
            del holder[key]
        elif isinstance(holder[key], list) and holder[key]:
            random.choice((holder[key].reverse, holder[key].pop, lambda h=holder[key]: h.append(h[0])))()
        elif isinstance(holder[key], str):
            holder[key] = random.choice(
                ("sequential", "parallel", "Zero", "ReLU", "Contraction", "INT8", "FP64", "document")
            )
    changed = json.dumps(data)
    if random.random() < 0.1:
        at = random.randrange(len(changed))
        changed = changed[:at] + random.choice(("", "\x00", "[", "}", '"', "NaN", "1e999", "é")) + changed[at + 1 :]
    return changed


def points(program: Program) -> int:
    """How many steps a program takes at most."""
    axes, primitives = axes_by_id(program), primitives_by_id(program)
    total = 0
    for visit in walk(program):
        if isinstance(visit.node, Invocation):
            ids = [node.axis for node in visit.path]
            ids += [id for _, role in primitives[visit.node.primitive].axes for id in role]
            steps = 1
            for id in ids:
                steps *= axes[id].extent
            total += steps
    return total


def judged(random: Random, text: str) -> str:
    """What became of a document: refused, run, or compiled only; fails where none of these is right."""
    try:
        program = from_json(text)
    except TileweaveError as error:
        assert str(error)
        return "refused"
    bounds = byte_bounds(program)
    size = max((max(high, 0) - min(low, 0) for low, high in bounds.values()), default=0)  # arrays hold their base
    if points(program) <= POINTS and size < 2**22:
        try:
            problem = difference(random, program)
        except BackendError as error:
            return f"kernel: {error}"
        except VerifyError as error:  # scratch memory that is too small: the backend refuses it as well
            assert error.facts["rule"] == "address.in-bounds", text
            with pytest.raises(BackendError, match="scratch tensor"):
                compile(program, cache=False)
            return f"kernel: {error}"
        assert problem == "", text
        return "run"
    try:
        kernel = compile(program, threads=2, cache=False)
    except BackendError as error:
        return f"kernel: {error}"
    arrays = {spec.name: np.zeros(1, numpy_dtype(spec.dtype)) for spec in program.tensors if spec.role != "scratch"}
    if any(high > 8 or low < 0 for low, high in bounds.values()):
        with pytest.raises(BackendError, match="touches bytes"):
            kernel.run(arrays)
    return "compiled"


def check(first: int, count: int) -> dict[str, int]:
    texts, found = documents(), dict[str, int]()
    for seed in range(first, first + count):
        random = Random(seed)
        text = random.choice(texts) if random.random() < 0.4 else to_json(any_program(random.randrange(500)))
        what = judged(random, damaged(random, text)).split(":")[0]
        found[what] = found.get(what, 0) + 1
    return found


@pytest.mark.parametrize("block", range(3))
def test_damaged_documents_are_refused_or_run(block: int) -> None:
    found = check(1000 * block, 120)
    assert found["refused"] > 20
    assert found["run"] > 5


def test_a_tensor_far_behind_its_base_is_compiled_and_refuses_short_arrays() -> None:
    """The bytes touched are few; an array that holds them and its base would be 2 GiB long."""
    data = json.loads(documents()[0])
    data["axes"][0]["offsets"] = [2**31] * len(data["axes"][0]["offsets"])
    assert judged(Random(0), json.dumps(data)) == "compiled"


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_many_damaged_documents_are_refused_or_run(block: int) -> None:
    found = check(100_000 + 1000 * block, 800)
    assert found["refused"] > 100
    assert found["run"] > 50


def test_the_classification_is_what_dispatches():
    """Without the tables of section 10.6 there is no code: not for a contraction, not for a copy.

    In a process of its own: in this one a test before it may have made the code of the kind.
    """
    run = subprocess.run([sys.executable, "-c", UNCLASSIFIED], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ["BackendError no classification", "RuntimeError no classification"]


UNCLASSIFIED = """
import numpy as np
from tileweave.backends.cpu import compile
from tileweave.errors import BackendError
from tileweave.lower import contract
from tileweave.teir.analysis import lower
from tileweave.teir.ir import examples

def refuse(*_, **__):
    raise RuntimeError("no classification")

a, b = np.ones((37, 41)), np.ones((41, 43))
assert np.array_equal(contract("ij,jk->ik", a.astype("f4"), b.astype("f4")), a @ b)
lower.classify = refuse
copy = lambda: compile(examples.permutation_tiled({"a": 5, "b": 6, "c": 7, "d": 8}), cache=False)
for work in (lambda: contract("ij,jk->ik", a, b), copy):
    try:
        work()
    except (BackendError, RuntimeError) as error:
        print(type(error).__name__, "no classification" if "no classification" in str(error) else error)
"""
