"""Candidates compute what the program computes, ranked by a model whose counts agree with an enumeration."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest

from tileweave.backends import cpu
from tileweave.errors import ScheduleError
from tileweave.layout import strided
from tileweave.teir import (
    Cache,
    Invocation,
    Machine,
    Operand,
    Program,
    as_tileweave,
    candidates,
    contraction_tiles,
    emit_contraction,
    emit_copy,
    emit_reduction,
    estimate,
    gather,
    interpret,
    problems,
    races,
    tile,
    uninitialised,
)
from tileweave.teir.analysis.model import Nest, cost, nests
from tileweave.teir.ir import examples
from tileweave.teir.ir.text import tree

SMALL = Machine(cores=4, caches=(Cache(2 << 10, 50e9), Cache(16 << 10, 20e9)))
"""Caches so small that small programs are worth cutting."""


def operand(array: np.ndarray, dtype: str = "INT32") -> Operand:
    return Operand(strided(array.shape, [s // array.itemsize for s in array.strides]), dtype)


def product_of(equation: str, extents: dict[str, int], **options) -> tuple[Program, dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    left, output = equation.split("->")
    a, b = (rng.integers(-3, 4, [extents[c] for c in term]).astype("i4") for term in left.split(","))
    out = np.full([extents[c] for c in output], 99, "i4")
    expected = np.einsum(equation, a, b)
    arrays = {"in0": a, "in1": b, "out": out}
    if options.pop("bias", False):
        arrays["bias"] = np.broadcast_to(rng.integers(-9, 9, out.shape[-1:]).astype("i4"), out.shape)
        options["init"], expected = operand(arrays["bias"]), expected + arrays["bias"]
    if options.get("relu"):
        expected = np.maximum(expected, 0)
    return emit_contraction(equation, (operand(a), operand(b)), operand(out), **options), arrays, expected


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
        ("ik,kj->ij", {"i": 96, "j": 64, "k": 128}, {"relu": True, "bias": True}),
        ("ki,jk->ij", {"i": 37, "j": 101, "k": 131}, {"relu": True}),  # primes: everything has a rest
        ("trus,pqtu->pqrs", {"t": 3, "r": 8, "u": 16, "s": 12, "p": 4, "q": 10}, {"bias": True}),
        ("bik,bkj->bij", {"b": 3, "i": 33, "j": 40, "k": 65}, {}),
        ("ik,kj->ij", {"i": 70, "j": 90, "k": 80}, {"tiling": contraction_tiles, "relu": True}),
        ("k,k->", {"k": 500}, {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_candidate_computes_the_product(equation, extents, options):
    program, arrays, expected = product_of(equation, extents, **options)
    found = candidates(program, SMALL, limit=5)
    assert 1 <= len(found) <= 5
    for candidate in found:
        check(candidate.program, arrays, expected)
    assert all(a.seconds <= b.seconds for a, b in pairwise(found))
    assert len({candidate.program for candidate in found}) == len(found)
    assert found[0].seconds <= sum(c.seconds for c in estimate(program, SMALL))


def test_the_pick_is_cut_parallel_and_closed_over_its_ends():
    program, arrays, expected = product_of("ik,kj->ij", {"i": 96, "j": 96, "k": 256}, relu=True, bias=True)
    best = candidates(program, SMALL)[0]
    lines = tree(best.program).splitlines()
    assert lines[0].endswith("(parallel)")
    assert sum("relu" in line for line in lines) == 1 and "relu" not in lines[-2]
    assert any("copy  [first(k_outer)]" in line for line in lines)
    assert "tiles" in best.how[0] and "loops" in best.how[1]
    assert best.explain().splitlines()[0].startswith(f"{best.seconds * 1e6:.3g} us: tiles")
    out = np.zeros_like(arrays["out"])
    cpu.compile(best.program, threads=2, cache=False).run({**arrays, "out": out})
    np.testing.assert_array_equal(out, expected)


def test_an_operand_of_many_lines_is_packed():
    """in1 is read down a column: every element of a tile is a line of its own."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (64, 96)).astype("i4"), rng.integers(-3, 4, (80, 96 * 16)).astype("i4")[:, ::16].T
    out = np.zeros((64, 80), "i4")
    program = emit_contraction("ik,kj->ij", (operand(a), operand(b)), operand(out))
    found = candidates(program, SMALL, limit=6)
    packed = [candidate for candidate in found if "packed" in " ".join(candidate.how)]
    assert packed and packed[0] is found[0]
    check(packed[0].program, {"in0": a, "in1": b, "out": out}, a @ b)


def test_copies_and_reductions_have_candidates_too():
    x = np.arange(64 * 96, dtype="i4").reshape(64, 96)
    out = np.zeros((96, 64), "i4")
    for candidate in candidates(emit_copy(operand(x), operand(out), "ab->ba"), SMALL, limit=4):
        check(candidate.program, {"in0": x, "out": out}, x.T)
    best = candidates(emit_copy(operand(x), operand(out), "ab->ba"), SMALL)[0]
    assert len(best.program.nodes) > 1  # it transposes in tiles
    total = np.zeros(96, "i4")
    for candidate in candidates(emit_reduction("sum", operand(x), operand(total), "ab->b"), SMALL, limit=4):
        check(candidate.program, {"in0": x, "out": total}, x.sum(0))


def test_programs_of_scalars_are_gathered_first():
    extents = dict.fromkeys("pqrstu", 3)
    program = as_tileweave(examples.contraction_scalar(extents))
    whole = gather(program)
    assert tree(whole) == "zero\ncontraction"
    assert {role: sorted(ids) for role, ids in whole.primitives[-1].axes} == {
        "M": ["r", "s"],
        "N": ["p", "q"],
        "K": ["t", "u"],
    }
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, [3] * 4).astype("f4") for _ in range(2))
    out = np.zeros([3] * 4, "f4")
    for candidate in candidates(program, SMALL, limit=3):
        check(candidate.program, {"in0": a, "in1": b, "out": out}, np.einsum("trus,pqtu->pqrs", a, b))
    assert candidates(program, SMALL)[-1].seconds <= sum(c.seconds for c in estimate(program, SMALL))


def check_seeds(wild, run, seeds: range) -> int:
    changed = 0
    for seed in seeds:
        program = wild(seed, parallel=0.4)
        if races(program) is not None:
            continue
        expected = run(program)
        for candidate in candidates(program, SMALL, limit=4):
            assert races(candidate.program) is None
            changed += candidate.program != program
            got = run(candidate.program, "random", seed)
            assert np.array_equal(got, expected), f"seed {seed}\n{program}\n\nbecame\n\n{candidate.program}"
    return changed


def test_candidates_keep_the_value_of_random_programs(wild, run):
    assert check_seeds(wild, run, range(60)) > 30


@pytest.mark.slow
@pytest.mark.parametrize("first", range(30_000, 32_000, 500))
def test_candidates_keep_the_value_of_many_random_programs(wild, run, first):
    assert check_seeds(wild, run, range(first, first + 500)) > 250


def test_guarded_ends_are_hoisted_when_a_program_is_gathered():
    program = as_tileweave(examples.guarded_reduction({"m": 3, "n": 4, "k": 200}))
    assert tree(gather(program)) == "zero\ncontraction\nrelu"
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (3, 200)).astype("f4"), rng.integers(-3, 4, (200, 4)).astype("f4")
    for candidate in candidates(program, SMALL, limit=4):
        check(candidate.program, {"in0": a, "in1": b, "out": np.zeros((3, 4), "f4")}, np.maximum(a @ b, 0))


def test_tile_refuses_what_it_cannot_cut():
    program, _, _ = product_of("ik,kj->ij", {"i": 8, "j": 8, "k": 8})
    with pytest.raises(ScheduleError, match="the factor does not fit axis 'i' of extent 8"):
        tile(program, "contraction", {"i": 9}, ["i"])
    cut = tile(program, "contraction", {"i": 3, "j": 8, "k": 1}, ["k", "i", "j"])
    assert tree(cut) == "zero\nk\n└── i_outer\n    └── contraction\nk.2\n└── contraction.2"
    with pytest.raises(ScheduleError, match="node 'k' is an iteration"):
        tile(cut, "k", {"j": 2}, ["j"])


# ── the model ──


def test_the_model_counts_the_arithmetic_and_the_bytes_of_a_tiled_product():
    """C[i, j] += A[i, k] B[k, j], 64 x 64 x 64 in FP32: three panels of 16 KiB."""
    side = Operand(strided((64, 64), (64, 1)), "FP32")
    nest = nests(emit_contraction("ik,kj->ij", (side, side), side))[-1]
    assert (nest.calls, nest.steps) == (1, 64**3)
    panel = 64 * 64 * 4

    def moved(size_bytes: int, nest: Nest = nest) -> int:
        return cost(nest, Machine(caches=(Cache(size_bytes, 1e9),))).levels[0].bytes_moved

    assert moved(3 * panel) == panel + panel + 2 * panel  # all fits: each comes once, and C goes back
    # only B, a row of A and a row of C fit: the same, since i is outermost
    assert moved(panel + 2 * 256) == 4 * panel
    # the lines of a column of B, a row of A and a line of C fit: B comes again for every i, its lines serve 16 columns
    assert moved(64 * 64 + 256 + 64) == panel + 64 * panel + 2 * panel


@pytest.mark.parametrize("seed", range(20))
def test_traffic_is_between_what_must_come_and_what_is_touched(seed):
    rng = np.random.default_rng(seed)
    strides = [0, 4, 8, 64, 256, 1024]
    nest = Nest(
        "p",
        tuple((int(rng.integers(1, 6)), tuple(int(rng.choice(strides)) for _ in range(2)), "sequential") for _ in "ab"),
        tuple((int(rng.integers(1, 6)), tuple(int(rng.choice(strides)) for _ in range(2))) for _ in "cd"),
        (4, 4),
        False,
        False,
        1,
    )
    loops = [(count, moves) for count, moves, _ in nest.loops] + list(nest.consumed)
    lines = [set(), set()]
    for point in product(*(range(count) for count, _ in loops)):
        for k in range(2):
            at = sum(index * moves[k] for index, (_, moves) in zip(point, loops, strict=True))
            lines[k].add(at // 64)
    least = 64 * sum(map(len, lines))
    sizes = [64, 256, 1024, 1 << 20]
    moved = [cost(nest, Machine(caches=(Cache(size, 1e9),))).levels[0].bytes_moved for size in sizes]
    assert all(a >= b for a, b in pairwise(moved))  # a larger cache never needs more
    assert moved[-1] >= 0.99 * least / 2  # spans are rounded up; strides that overlap may be counted as one span
    assert moved[0] <= 2 * 64 * nest.calls * nest.steps * 2


def test_cores_calls_and_vectors_cost():
    program, _, _ = product_of("ik,kj->ij", {"i": 64, "j": 64, "k": 64})
    scalar = tile(program, "contraction", {"i": 1, "j": 1, "k": 1}, ["i", "j", "k"])
    one, four = Machine(), Machine(cores=4, region_seconds=0)
    assert sum(c.seconds for c in estimate(scalar, one)) > 10 * sum(c.seconds for c in estimate(program, one))
    assert estimate(scalar, one)[-1].bound == "calls"
    rows = tile(program, "contraction", {"i": 16}, ["i"])
    nodes = tuple(n if isinstance(n, Invocation) else replace(n, policy="parallel") for n in rows.nodes)
    parallel = replace(rows, nodes=nodes)
    assert estimate(parallel, four)[-1].cores == 4
    assert estimate(parallel, Machine(cores=3))[-1].cores == 2  # four tiles in two rounds
    assert estimate(parallel, four)[-1].seconds < estimate(rows, four)[-1].seconds
    narrow = tile(program, "contraction", {"j": 1}, ["j"])
    assert estimate(narrow, one)[-1].arithmetic_seconds == pytest.approx(
        8 * estimate(program, one)[-1].arithmetic_seconds
    )


@pytest.mark.parametrize(
    "bad", [{"cores": 0}, {"caches": ()}, {"caches": (Cache(0, 1e9),)}, {"flops_per_second": -1.0}]
)
def test_machines_that_are_none_are_refused(bad):
    with pytest.raises(ScheduleError, match="a rate or a size is not positive"):
        Machine(**bad)
