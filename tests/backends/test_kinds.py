"""Products of one kind share code: sizes come from a table, and values have the same bits as with constants."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest
from tests.teir import rows

from tileweave import teir
from tileweave.backends import cpu
from tileweave.backends.cpu import kernel as kernels
from tileweave.backends.cpu.gemm.blocking import NEAR, axes_of, longer, tile_of
from tileweave.backends.cpu.gemm.gett import block_product
from tileweave.backends.cpu.llvm.elements import element
from tileweave.backends.cpu.llvm.ir import Function, Module
from tileweave.backends.cpu.nest import Nest, emit_program
from tileweave.backends.cpu.target import later
from tileweave.backends.cpu.target.target import Target
from tileweave.index.sizes import Sizes, Table
from tileweave.layout import strided
from tileweave.teir.merged.form import MergedOp
from tileweave.teir.merged.merge import merged

TARGETS = [
    Target("x86-64-v3", "", vector_bytes=32, registers=16),
    Target("x86-64-v4", "", vector_bytes=64, registers=32),
]
EQUATIONS = [
    "ik,kj->ij",
    "ki,kj->ij",
    "ik,jk->ji",
    "bik,bkj->bij",
    "trus,pqtu->pqrs",
    "aki,kbj->aibj",
    "ij,j->i",
    "i,j->ij",
]


def operand(shape: tuple[int, ...], dtype: str, gap: int = 0) -> teir.Operand:
    strides, step = [0] * len(shape), 1
    for k in reversed(range(len(shape))):
        strides[k], step = step, step * shape[k] + gap
    return teir.Operand(strided(shape, strides), dtype)


def random_program(rng: random.Random, dtype: str = "FP32", equations: int = len(EQUATIONS)) -> teir.Program:
    equation = rng.choice(EQUATIONS[:equations])
    few = 4 if len(equation) > 12 else 9
    extents = {letter: int(2 ** rng.uniform(0.5, few)) for letter in sorted(set(equation) - set("->,"))}
    shapes = [tuple(extents[x] for x in term) for term in equation.replace("->", ",").split(",")]
    a, b, out = (operand(shape, dtype, rng.choice((0, 0, 5))) for shape in shapes)
    return teir.emit_contraction(equation, (a, b), out, relu=rng.random() < 0.3)


def made(program: teir.Program, target: Target, threads: int) -> tuple[Hashable, list[int], Nest] | None:
    form = merged(program)
    op = form.body[0]
    if not isinstance(op, MergedOp) or op.kind != "Contraction":
        return None
    nest = emit_program(form, target, threads, general=True)
    if nest.sizes is None or nest.tables:  # a direct convolution is no product of a family
        return None
    elements = tuple(element(program.tensors[j].dtype) for j in op.operands)
    c = block_product(op, elements, target, threads)
    numbers = [nest.sizes.numbers[k] for k in nest.sizes.parameters]
    (axes, extents), (tile, blocks) = axes_of(c), tile_of(c)
    assert numbers[: len(extents) + len(blocks)] == [*extents, *blocks]
    return ((axes, tile), op.operands, op.init, op.relu), numbers, nest


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.cpu)
def test_a_table_is_made_for_other_sizes_where_their_text_is_the_same_one(target: Target) -> None:
    rng, seen = random.Random(5), defaultdict[Hashable, list[tuple[list[int], Nest, Table]]](list)
    shared = 0
    for _ in range(150):
        threads = rng.choice((1, 2))
        found = made(random_program(rng, equations=2), target, threads)
        if found is None:
            continue
        key, numbers, nest = found
        for others, other, table in seen[key, threads]:
            for one, given, of in ((nest, numbers, table), (other, others, Table(nest.sizes))):  # type: ignore[arg-type]
                made_of = of.of(given)
                if made_of is not None:
                    shared += 1
                    assert other.source == nest.source
                    assert made_of == one.sizes.table()
        assert nest.sizes is not None
        assert Table(nest.sizes).of(numbers) == nest.sizes.table()
        seen[key, threads].append((numbers, nest, Table(nest.sizes)))
    assert shared >= 10


@pytest.mark.parametrize("seed", range(12))
def test_values_have_the_bits_of_code_with_constant_sizes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    dtype, name = rng.choice((("FP32", "f4"), ("FP64", "f8"), ("INT32", "i4")))
    for _ in range(2):
        program = random_program(rng, dtype)
        results = []
        for general in (True, False):
            monkeypatch.setattr(kernels, "GENERAL", general)
            kernel = cpu.compile(program, threads=rng.choice((1, 2)), cache=False)
            values = np.random.default_rng(seed)
            arrays = [
                np.asarray(values.integers(-9, 9, max(1, high // np.dtype(name).itemsize)), name)
                for _, _, _, _, high in kernel._checks.wanted
            ]
            kernel(*arrays)
            results.append(arrays[-1])
        np.testing.assert_array_equal(*results)


def test_products_of_one_kind_share_one_function() -> None:
    def compiled(m: int, k: int, n: int) -> Any:
        a, b, out = (operand(shape, "FP32") for shape in ((m, k), (k, n), (m, n)))
        return cpu.compile(teir.emit_contraction("ik,kj->ij", (a, b), out), threads=1)

    one, two, other = compiled(300, 200, 410), compiled(300, 230, 430), compiled(3, 200, 400)
    assert one.source == two.source != other.source
    assert one._entry.code is two._entry.code
    assert "m 300, n 410, k 200" in one.explain()
    assert "m 300, n 430, k 230" in two.explain()


def test_a_decision_from_a_size_is_recorded() -> None:
    sizes = Sizes()
    module = Module(sizes, 48)
    f = Function(module, "f", [("ptr", "env")], public=True)
    n, m = sizes.parameter(20), sizes.parameter(7)
    total = n * m + 1
    f.store("i64", total if n % 4 == 0 else m, f.at("%env", n), 8)
    list(range(sizes.parameter(3)))
    f.ret()
    table = Table(sizes)
    assert "%size.0" in module.text()
    assert table.of([20, 7, 3]) == (20, 141)
    assert table.of([24, 1, 3]) == (24, 25)
    assert table.of([21, 7, 3]) is None
    assert table.of([20, 7, 4]) is None


def test_convolutions_of_other_images_share_one_function() -> None:
    def compiled(channels: int, filters: int, height: int, width: int) -> cpu.CpuKernel:
        weights = operand((filters, channels, 3, 3), "FP32")
        windows = teir.Operand(
            strided((channels, height, width, 3, 3), [(height + 2) * (width + 2), width + 2, 1, width + 2, 1]), "FP32"
        )
        program = teir.emit_contraction(
            "chwij,fcij->fhw", (windows, weights), operand((filters, height, width), "FP32")
        )
        return cpu.compile(program, threads=1)

    one, other, small = compiled(8, 24, 20, 48), compiled(10, 24, 40, 96), compiled(8, 24, 5, 5)
    assert "direct convolution" in one.explain()
    assert one.source == other.source != small.source
    assert one._entry.code is other._entry.code


def chain(which: str, m: int, n: int) -> teir.Program:
    whole, row, column = operand((m, n), "FP32"), operand((n,), "FP32"), operand((m,), "FP32")
    if which == "softmax":
        return rows.softmax(whole, whole)
    if which == "add":
        return teir.emit_elementwise("Add", (whole, row), whole, "ij,j->ij")
    if which == "norm":
        return rows.rms_norm(whole, whole)
    if which == "copy":
        return teir.emit_copy(whole, operand((m, n), "FP32", 7))
    return teir.emit_reduction("sum", whole, *((column, "ij->i") if which == "rows" else (row, "ij->j")))


def on_random(kernel: cpu.CpuKernel) -> list[np.ndarray[Any, Any]]:
    values = np.random.default_rng(1)
    arrays = [values.random(high // dtype.itemsize, dtype=dtype) for _, dtype, _, _, high in kernel._checks.wanted]
    kernel(*arrays)
    return arrays


@pytest.mark.parametrize("which", ["softmax", "add", "norm", "copy", "rows", "columns"])
def test_chains_have_the_bits_of_code_with_constant_sizes(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(which)
    texts = []
    for n in (70, 300, 310, 326, 1030):
        program = chain(which, rng.randrange(5, 60), n)
        kernel = cpu.compile(program, threads=1)
        texts.append(kernel.source)
        monkeypatch.setattr(kernels, "GENERAL", False)
        special = cpu.compile(program, threads=1, cache=False)
        monkeypatch.undo()
        assert "%size" not in special.source
        for one, two in zip(on_random(kernel), on_random(special), strict=True):
            np.testing.assert_array_equal(one, two)
    assert len(set(texts)) < len(texts), "some sizes share code"


def sizes_of(program: teir.Program) -> list[tuple[int, tuple[int, ...]]]:
    return [(axis.extent, axis.strides) for axis in program.axes]


@pytest.mark.parametrize("equation", ["ik,kj->ij", "ki,jk->ij", "bik,bkj->bij"])
def test_code_of_other_blocks_gives_the_same_bits(equation: str) -> None:
    rng, served = random.Random(equation), 0

    def product(dtype: str) -> teir.Program:
        extents = {letter: int(2 ** rng.uniform(1, 6 if letter == "b" else 8)) for letter in "bijk"}
        shapes = [tuple(extents[x] for x in term) for term in equation.replace("->", ",").split(",")]
        a, b, out = (operand(shape, dtype) for shape in shapes)
        return teir.emit_contraction(equation, (a, b), out)

    for dtype in ("FP32", "FP64"):
        known = [cpu.compile(product(dtype), threads=1) for _ in range(4)]
        for _ in range(12):
            program = product(dtype)
            lent = known[0].resized(sizes_of(program), soon=True)
            if lent is None or lent.settled:
                continue
            own = cpu.compile(program, threads=1)
            served += own.source != lent.source
            for one, two in zip(on_random(lent), on_random(own), strict=True):
                np.testing.assert_array_equal(one, two)
    assert served >= 6, "most of what serves is other code"


def test_code_of_its_own_is_made_for_sizes_that_ask_for_it() -> None:
    def product(m: int) -> teir.Program:
        a, b, out = (operand(shape, "FP32") for shape in ((m, 65), (65, 103), (m, 103)))
        return teir.emit_contraction("ik,kj->ij", (a, b), out)

    known = cpu.compile(product(131), threads=1)
    wanted = sizes_of(product(5))
    assert known.resized(wanted) is None, "unasked, no slower code serves"
    first = known.resized(wanted, soon=True)
    assert first is not None and not first.settled and first.own() is None
    later.finish()
    own = first.own()
    assert own is not None and own.settled and own.own() is own
    assert own.source == cpu.compile(product(5), threads=1).source != first.source


@pytest.mark.parametrize("equation", ["ik,kj->ij", "ik,jk->ij", "abk,kj->abj", "bik,bkj->bij"])
@pytest.mark.parametrize("dtype", ["FP32", "FP64"])
def test_products_that_begin_with_a_row_share_code(equation: str, dtype: str) -> None:
    rng, served = random.Random(equation + dtype), 0
    kept = []
    for _ in range(30):  # with wide vectors there are more tiles, each of which needs its own code once
        extents = {letter: rng.randrange(2, 6) if letter in "ab" else rng.randrange(70, 200) for letter in "abijk"}
        shapes = [tuple(extents[x] for x in term) for term in equation.replace("->", ",").split(",")]
        a, b, out = (operand(shape, dtype) for shape in shapes)
        width = 4 if dtype == "FP32" else 8
        row = teir.Operand(strided(shapes[2], [0] * (len(shapes[2]) - 1) + [1]), dtype)
        clips = rng.random() < 0.5
        program = teir.emit_contraction(equation, (a, b), out, init=row, relu=clips)
        kernel = cpu.compile(program, threads=1)
        kept.append(kernel)
        served += bool(kernel._numbers)
        own = cpu.compile(program, threads=1, cache=False)
        assert own.source == kernel.source or kernel._numbers, "only code of other sizes may have other tiles"
        arrays = [
            np.random.default_rng(3).standard_normal(high // width).astype(f"f{width}")
            for *_, high in own._checks.wanted
        ]
        other = [array.copy() for array in arrays]
        kernel(*arrays)
        own(*other)
        np.testing.assert_array_equal(arrays[2], other[2])
        x, w = (array.reshape(shape).astype("f8") for array, shape in zip(arrays, shapes[:2], strict=False))
        want = np.einsum(equation, x, w) + arrays[3]
        want = np.maximum(want, 0) if clips else want
        np.testing.assert_allclose(arrays[2].reshape(shapes[2]), want, rtol=1e-3, atol=1e-3)
    assert served >= 5


@pytest.mark.parametrize("row", [False, True])
@pytest.mark.parametrize("dtype", ["FP32", "FP64"])
def test_code_of_other_tiles_serves_for_good_where_it_takes_about_as_long(dtype: str, row: bool) -> None:
    seed = random.randrange(1 << 30)
    rng, kept, others = random.Random(seed), [], 0
    for _ in range(14):
        m, n, k = rng.randrange(100, 400), rng.randrange(50, 300), rng.randrange(20, 60)
        a, b, out = (operand(shape, dtype) for shape in ((m, k), (k, n), (m, n)))
        init = {"init": teir.Operand(strided((m, n), [0, 1]), dtype)} if row else {}
        program = teir.emit_contraction("ik,kj->ij", (a, b), out, **init)
        kernel = cpu.compile(program, threads=1)
        kept.append(kernel)
        family = kernel._family
        if family is None or not kernel._numbers:
            continue
        found = family.find(sizes_of(program))
        cut = family.blocked(next(merged(program).operations()))
        other = family.cuts[found.variant][0]
        assert not found.lent and kernel.settled, seed
        if tile_of(cut)[0] != tile_of(other)[0]:
            others += 1
            assert longer(cut, other) <= NEAR, (seed, m, n, k)
        own = cpu.compile(program, threads=1, cache=False)
        for one, two in zip(on_random(kernel), on_random(own), strict=True):
            np.testing.assert_array_equal(one, two, err_msg=str(seed))
    texts = {kernel.source for kernel in kept}
    assert len(texts) <= 9, f"seed {seed}: {len(texts)} texts for {len(kept)} sizes, {others} of other tiles"
