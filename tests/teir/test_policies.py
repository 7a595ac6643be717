"""Policies are an open set, and metadata nest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tileweave.backends.cpu import compile
from tileweave.errors import VerifyError
from tileweave.layout import strided
from tileweave.teir import (
    Entries,
    Iteration,
    Operand,
    PolicySpec,
    Tiling,
    emit_copy,
    from_json,
    interpret,
    policies,
    problems,
    races,
    register_policy,
    to_json,
)
from tileweave.teir.ir import examples
from tileweave.teir.ir import policies as registry


@pytest.fixture
def lanes(monkeypatch):
    monkeypatch.setattr(registry, "_POLICIES", dict(registry._POLICIES))
    return register_policy(PolicySpec("lanes", True, "one lane of a vector each"))


def _by_lanes():
    line = Operand(strided((6, 5), (5, 1)), "FP32")
    program = emit_copy(line, line, tiling=lambda dims: Tiling((1,) * len(dims)))
    nodes = tuple(replace(n, policy="lanes") if isinstance(n, Iteration) else n for n in program.nodes)
    return replace(program, nodes=nodes)


def test_a_registered_policy_is_verified_saved_interpreted_and_compiled(lanes):
    program = _by_lanes()
    assert problems(program) == () and races(program) is None and "lanes" in policies()
    assert from_json(to_json(program)) == program
    assert "(lanes)" in str(program)
    x = np.arange(30, dtype="f4")
    for run in (lambda y: interpret(program, {"in0": x, "out": y}, order="random"), lambda y: compile(program)(x, y)):
        y = np.zeros_like(x)
        run(y)
        assert np.array_equal(x, y)
    with pytest.raises(VerifyError, match="is registered already"):
        register_policy(lanes)


def test_iterations_in_any_order_must_not_race(lanes):
    program = examples.guarded_reduction({"m": 2, "n": 3, "k": 4})
    nodes = tuple(replace(n, policy="lanes") if isinstance(n, Iteration) else n for n in program.nodes)
    assert races(replace(program, profile="tileweave", nodes=nodes, primitives=_bound(program))) is not None


def _bound(program):
    from tileweave.teir import as_tileweave

    return as_tileweave(program).primitives


def test_unknown_policies_are_refused():
    (problem,) = problems(_by_lanes())
    assert problem.rule == "iteration.policy" and "its policy is 'lanes'" in problem.message


def test_the_document_has_two_policies(lanes):
    program = examples.guarded_reduction({"m": 2, "n": 3, "k": 4})
    nodes = tuple(replace(n, policy="lanes") if isinstance(n, Iteration) else n for n in program.nodes)
    assert [p.rule for p in problems(replace(program, nodes=nodes))] == ["iteration.policy"]


def test_metadata_nest():
    program = examples.guarded_reduction({"m": 2, "n": 3, "k": 4})
    nested = Entries((("tile", (8, 16)), ("target", Entries((("cpu", "znver4"), ("fast", True))))))
    primitives = tuple(replace(p, metadata=(*p.metadata, ("hints", nested))) for p in program.primitives)
    program = replace(program, primitives=primitives)
    assert problems(program) == ()
    assert from_json(to_json(program)) == program
    assert "hints: {tile: [8, 16], target: {cpu: znver4, fast: True}}" in str(program)
    deep = nested
    for _ in range(20):
        deep = Entries((("more", deep),))
    bad = replace(program, primitives=(replace(primitives[0], metadata=(("hints", deep),)), *primitives[1:]))
    assert problems(bad) and problems(bad)[0].path.startswith("primitives[0]")
    with pytest.raises(VerifyError):
        from_json('{"hints": ' * 3)
