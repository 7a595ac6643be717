"""Gathering loops and cutting tiles keep the value of a program."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tileweave.errors import ScheduleError
from tileweave.layout import strided
from tileweave.teir import (
    Operand,
    Program,
    as_tileweave,
    contraction_tiles,
    emit_contraction,
    gather,
    interpret,
    problems,
    races,
    tile,
    uninitialised,
)
from tileweave.teir.ir import examples
from tileweave.teir.ir.text import tree


def operand(array: np.ndarray, dtype: str = "INT32") -> Operand:
    return Operand(strided(array.shape, [s // array.itemsize for s in array.strides]), dtype)


def product_of(equation: str, extents: dict[str, int], **options) -> tuple[Program, dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    left, output = equation.split("->")
    a, b = (rng.integers(-3, 4, [extents[c] for c in term]).astype("i4") for term in left.split(","))
    out = np.full([extents[c] for c in output], 99, "i4")
    expected = np.einsum(equation, a, b)
    if options.get("relu"):
        expected = np.maximum(expected, 0)
    program = emit_contraction(equation, (operand(a), operand(b)), operand(out), **options)
    return program, {"in0": a, "in1": b, "out": out}, expected


def check(program: Program, arrays, expected) -> None:
    assert problems(program) == ()
    assert races(program) is None
    assert uninitialised(program, limit=20_000_000) is None
    arrays["out"][...] = 99
    interpret(program, arrays, order="random")
    np.testing.assert_array_equal(arrays["out"], expected)


@pytest.mark.parametrize(
    ("equation", "extents", "options"),
    [
        ("ik,kj->ij", {"i": 96, "j": 64, "k": 128}, {"relu": True}),
        ("ki,jk->ij", {"i": 37, "j": 101, "k": 131}, {"relu": True}),  # primes: everything has a rest
        ("trus,pqtu->pqrs", {"t": 3, "r": 8, "u": 16, "s": 12, "p": 4, "q": 10}, {}),
        ("bik,bkj->bij", {"b": 3, "i": 33, "j": 40, "k": 65}, {}),
        ("ik,kj->ij", {"i": 70, "j": 90, "k": 80}, {"tiling": contraction_tiles, "relu": True}),
        ("k,k->", {"k": 500}, {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tiles_in_any_order_compute_the_product(equation, extents, options):
    program, arrays, expected = product_of(equation, extents, **options)
    whole = gather(program)
    check(whole, arrays, expected)
    rng = random.Random(1)
    node = next(str(n.id) for n in whole.nodes if str(n.id).startswith("contraction"))
    for _ in range(4):
        axes = [id for _, ids in whole.primitive(whole.node(node).primitive).axes for id in ids]
        sizes = {id: rng.choice((1, 7, 16, whole.axis(id).extent)) for id in axes}
        sizes = {id: min(size, whole.axis(id).extent) for id, size in sizes.items()}
        order = rng.sample(axes, len(axes))
        check(tile(whole, node, sizes, order), arrays, expected)


def test_programs_of_scalars_are_gathered():
    extents = dict.fromkeys("pqrstu", 3)
    program = as_tileweave(examples.contraction_scalar(extents))
    whole = gather(program)
    assert tree(whole) == "zero\ncontraction"
    assert {role: sorted(ids) for role, ids in whole.primitives[-1].axes} == {
        "M": ["r", "s"],
        "N": ["p", "q"],
        "K": ["t", "u"],
    }


def test_gathering_keeps_the_value_of_random_programs(wild, run):
    changed = 0
    for seed in range(60):
        program = wild(seed, parallel=0.4)
        if races(program) is None:
            whole = gather(program)
            changed += whole != program
            assert np.array_equal(run(whole, "random", seed), run(program)), f"seed {seed}"
    assert changed > 10


def test_guarded_ends_are_hoisted_when_a_program_is_gathered():
    program = as_tileweave(examples.guarded_reduction({"m": 3, "n": 4, "k": 200}))
    assert tree(gather(program)) == "zero\ncontraction\nrelu"


def test_tile_refuses_what_it_cannot_cut():
    program, _, _ = product_of("ik,kj->ij", {"i": 8, "j": 8, "k": 8})
    with pytest.raises(ScheduleError, match="the factor does not fit axis 'i' of extent 8"):
        tile(program, "contraction", {"i": 9}, ["i"])
    cut = tile(program, "contraction", {"i": 3, "j": 8, "k": 1}, ["k", "i", "j"])
    assert tree(cut) == "zero\nk\n└── i_outer\n    └── contraction\nk.2\n└── contraction.2"
    with pytest.raises(ScheduleError, match="node 'k' is an iteration"):
        tile(cut, "k", {"j": 2}, ["j"])
