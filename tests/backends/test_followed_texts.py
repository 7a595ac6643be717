"""A text serves a program of other sizes only where it is, with its table, the one that this program would get."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import pytest
from tests.backends import random_programs
from tests.teir import rows

import tileweave as tw
from tileweave import teir
from tileweave.backends import cpu
from tileweave.backends.cpu import followed
from tileweave.backends.cpu import kernel as kernels
from tileweave.backends.cpu.nest import emit_program
from tileweave.backends.cpu.target.target import Target, host
from tileweave.teir.analysis.calls import bounds
from tileweave.teir.ir.form import kind_of, numbers_of
from tileweave.teir.merged.merge import merged

TARGETS = [
    Target("x86-64-v3", "", vector_bytes=32, registers=16, l3_bytes=1 << 20),
    Target("x86-64-v4", "", vector_bytes=64, registers=32),
]


def dense(shape: tuple[int, ...], dtype: str = "FP32", gap: int = 0) -> teir.Operand:
    if not shape:
        return teir.Operand(tw.layout.strided((), ()), dtype)
    array = np.empty((*shape[:-1], shape[-1] + gap), np.int8)[..., : shape[-1]]
    return teir.Operand(tw.layout.strided(shape, array.strides), dtype)


def random_rows(rng: random.Random) -> teir.Program:
    """A softmax, a norm, a chain, a reduction, a running sum, or a rearrangement, of random extents."""
    shape = tuple(int(2 ** rng.uniform(0, 9)) for _ in range(rng.choice((1, 2, 2, 3))))
    dtype, gap = rng.choice(("FP32", "FP32", "FP64", "FP16")), rng.choice((0, 0, 3))
    x, out = dense(shape, dtype, gap), dense(shape, dtype)
    kind = rng.randrange(8)
    letters = "abc"[: len(shape)]
    if kind == 0:
        return rows.softmax(x, out, log=rng.random() < 0.3)
    if kind == 1:
        return rows.layer_norm(x, out)
    if kind == 2:
        return rows.rms_norm(x, out, dense(shape[-1:], dtype))
    if kind == 3:
        kept = "".join(letter for letter in letters if rng.random() < 0.5)
        made = dense(tuple(shape[letters.index(letter)] for letter in kept) or (1,), dtype)
        if kept and kept != letters:
            return teir.emit_reduction(rng.choice(("sum", "max")), x, made, f"{letters}->{kept}")
    if kind == 4:
        order = list(range(len(shape)))
        rng.shuffle(order)
        turned = dense(tuple(shape[k] for k in order), dtype)
        return teir.emit_copy(x, turned, f"{letters}->{''.join(letters[k] for k in order)}")
    if kind == 5 and dtype != "FP16":
        return teir.emit_running("sum", x, out, rng.randrange(len(shape)))
    if kind == 6 and dtype != "FP16":
        axis = rng.randrange(len(shape))
        places = tuple(n for k, n in enumerate(shape) if k != axis) or (1,)
        if len(shape) > 1:
            return teir.emit_place("max", x, dense(places, "INT64"), axis)
    steps = [("Fill", (rng.choice((0.5, 0.25, 1.0)),), dtype), ("Mul", (0, -1)), ("Exp", (-2,)), ("Add", (-3, 0))]
    return teir.emit_chain(steps, [x], out, name="chain")


def random_product(rng: random.Random) -> teir.Program:
    """A product with what stands before and behind it."""
    m, n, k, b = (int(2 ** rng.uniform(0.5, 8)) for _ in range(4))
    dtype = rng.choice(("FP32", "FP32", "FP64"))
    kind = rng.randrange(5)
    if kind == 4:
        equation = rng.choice(("ik,k->i", "k,kj->j", "bik,bk->bi", "i,i->", "ij,ij->ij", "i,j->ij"))
        extents = {"i": m, "j": n, "k": k, "b": b // 8 + 1}
        one, two, made = (tuple(extents[c] for c in term) for term in equation.replace("->", ",").split(","))
        return teir.emit_contraction(equation, (dense(one, dtype), dense(two, dtype)), dense(made or (), dtype))
    if kind == 0:
        shapes = (b // 8 + 1, m, k), (b // 8 + 1, k, n), (b // 8 + 1, m, n)
        x, w, out = (dense(shape, dtype) for shape in shapes)
        return teir.emit_contraction("bik,bkj->bij", (x, w), out, relu=rng.random() < 0.5)
    x, w, out = (dense(shape, dtype) for shape in ((m, k), (k, n), (m, n)))
    row = teir.Operand(tw.layout.strided((m, n), (0, 1)), dtype)
    if kind == 1:
        return teir.emit_contraction("ik,kj->ij", (x, w), out, init=row, relu=rng.random() < 0.5)
    steps = [("Add", (0, 1)), rng.choice([("Exp", (-1,)), ("ReLU", (-1,)), ("Tanh", (-1,))])]
    behind = {"chain": steps, "extras": [row if kind == 2 else dense((m, n), dtype)], "sums": dtype, "added": ""}
    return teir.emit_contraction("ik,kj->ij", (x, w), out, **behind)


def random_attention(rng: random.Random) -> teir.Program:
    """Attention with a scale, of few queries or many."""
    queries, keys = (int(2 ** rng.uniform(1, 9)) for _ in range(2))
    depth = rng.choice((16, 32, 40))
    q, k, v, out = (dense(shape) for shape in ((queries, depth), (keys, depth), (keys, depth), (queries, depth)))
    scale = rng.choice((0.25, 0.125))
    steps = [("Fill", (scale,)), ("Mul", (0, -1)), ("ReduceMax", (-2,)), ("Sub", (-2, -3)), ("Exp", (-4,))]
    steps += [("ReduceSum", (-5,)), ("Div", (-5, -6))]
    return teir.emit_attention(steps, [q, k, v], out, ["id", "jd", "je", "ie"])


@dataclass(frozen=True)
class Windows:
    """What convolutions of one kind have in common: per dimension of the image a stride, a dilation and a window."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    windows: tuple[int, ...]
    groups: int
    channels: int
    filters: int
    chain: int
    dtype: str

    def program(self, batch: int, extents: tuple[int, ...]) -> teir.Program:
        """The convolution with so many images and results."""
        rank = len(extents)
        image = [
            s * (n - 1) + d * (k - 1) + 1
            for s, d, k, n in zip(self.strides, self.dilations, self.windows, extents, strict=True)
        ]
        places, taps = "xyz"[:rank], "ijk"[:rank]

        def steps(shape: tuple[int, ...]) -> list[int]:
            return [math.prod(shape[k + 1 :]) for k in range(len(shape))]

        n, g, c, *along = steps((batch, self.groups, self.channels, *image))
        seen = [s * a for s, a in zip(self.strides, along, strict=True)]
        over = [d * a for d, a in zip(self.dilations, along, strict=True)]
        x = tw.layout.strided((batch, self.groups, self.channels, *extents, *self.windows), (n, g, c, *seen, *over))
        w = dense((self.groups, self.filters, self.channels, *self.windows), self.dtype)
        out = dense((batch, self.groups, self.filters, *extents), self.dtype)
        equation = f"ngc{places}{taps},gfc{taps}->ngf{places}"
        operands = teir.Operand(x, self.dtype), w
        if not self.chain:
            return teir.emit_contraction(equation, operands, out)
        bias = teir.Operand(
            tw.layout.strided((batch, self.groups, self.filters, *extents), (0, self.filters, 1, *(0,) * rank)),
            self.dtype,
        )
        more = [bias, out][: self.chain]
        chain = [("Add", (0, 1)), *([("Add", (-1, 2))] if self.chain > 1 else []), ("ReLU", (-self.chain,))]
        return teir.emit_contraction(equation, operands, out, chain=chain, extras=more, sums=self.dtype, added="")


def random_windows(rng: random.Random) -> Windows:
    """Of one to three dimensions, with groups or channels of their own."""
    rank = rng.choice((1, 2, 2, 3))
    groups, channels, filters = rng.choice(((1, 3, 5), (1, 8, 24), (1, 40, 16), (2, 5, 9), (12, 1, 1), (1, 24, 70)))
    strides, dilations = (tuple(rng.choice((1, 1, 2, 3)) for _ in range(rank)) for _ in range(2))
    strides = (*strides[:-1], min(2, strides[-1]))  # three apart, vectors are no loads
    windows = tuple(rng.choice((1, 3, 3, 5)) for _ in range(rank))
    dtype = rng.choice(("FP32", "FP32", "FP64"))
    return Windows(strides, dilations, windows, groups, channels, filters, rng.randrange(3), dtype)


def random_images(rank: int, rng: random.Random) -> Iterator[tuple[int, tuple[int, ...]]]:
    """How many images, and the extents of a result; most of them differ in their width alone, by whole vectors."""
    most = (300, 40, 12)[rank - 1]
    while True:
        batch, *outer = rng.choice((1, 2, 3)), *(rng.randrange(2, most) for _ in range(rank - 1))
        width = rng.randrange(2, 2 * most)
        for _ in range(3):
            yield batch, (*outer, width)
            width += 16 * rng.randrange(1, 4)


def resized(program: teir.Program, rng: random.Random) -> teir.Program:
    """The same program with some other sizes, of the same kind."""

    def extent(n: int) -> int:
        return n if n == 1 or rng.random() < 0.4 else rng.choice((2, 3, 15, 16, 17, 64, 65, 128, 200, 1000, n + 1))

    def stride(s: int) -> int:
        return s if not s or rng.random() < 0.6 else s * rng.choice((1, 2, 3, -1, 17))

    axes = tuple(replace(a, extent=extent(a.extent), strides=tuple(map(stride, a.strides))) for a in program.axes)
    tensors = tuple(replace(t, size_bytes=t.size_bytes * 1000) if t.size_bytes else t for t in program.tensors)
    return replace(program, axes=axes, tensors=tensors)


def check(
    program: teir.Program,
    text: followed.FollowedText,
    source: str,
    target: Target,
    threads: int,
    constant: Collection[str] = (),
) -> bool:
    """Whether a text serves a program; if so, all of it is what the program would get."""
    found = text.serves(numbers_of(program))
    if found is None:
        return False
    table, places = found
    nest = emit_program(merged(program), target, threads, general=True, constant=constant)
    assert nest.sizes is not None
    assert nest.source == source
    assert nest.sizes.table()[: text.words] == table
    assert places.packings == nest.packings
    assert list(map(id, places.tables)) == list(map(id, nest.tables))
    reach = bounds(program)
    outside = [spec for spec in program.tensors if spec.role != "scratch"]
    assert places.bounds == tuple(reach.get(spec.name, (0, 0)) for spec in outside)
    ends = {spec.name: places.scratch[spec.name] + spec.size_bytes for spec in program.tensors if spec.size_bytes}
    starts = sorted(places.scratch.values())
    assert (
        all(end <= starts[k + 1] for k, end in enumerate(sorted(ends.values())[:-1]))
        and max(ends.values(), default=0) <= places.end
    )
    return True


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.cpu)
@pytest.mark.parametrize("block", range(4))
def test_served_programs_would_get_the_same_text_and_table(target: Target, block: int) -> None:
    rng = random.Random(block)
    known: dict[object, list[tuple[followed.FollowedText, str]]] = {}
    served = 0
    for number in range(70):
        threads = rng.choice((1, 2))
        kinds = (
            random_rows,
            random_rows,
            random_product,
            random_attention,
            lambda rng: random_programs.any_program(rng.randrange(10**6)),
        )
        first = kinds[number % 5](rng)
        for program in (first, *(resized(first, rng) for _ in range(4))):
            if teir.problems(program) or kind_of(program) is None:
                continue
            texts = known.setdefault((kind_of(program), threads), [])
            served += sum(check(program, text, source, target, threads) for text, source in texts)
            try:
                made = followed.write(program, target, threads)
            except tw.TileweaveError:  # scratch memory is too small
                continue
            if made is None:
                continue
            nest, text = made
            texts.append((text, nest.source))
            assert check(program, text, nest.source, target, threads), f"seed {block}, {number}"
    assert served > 20


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.cpu)
@pytest.mark.parametrize("block", range(4))
def test_served_convolutions_would_get_the_same_text_table_and_order_of_weights(target: Target, block: int) -> None:
    rng = random.Random(block)
    served = direct = 0
    for number in range(8):
        windows, threads = random_windows(rng), rng.choice((1, 2))
        known: dict[object, list[tuple[followed.FollowedText, str]]] = {}
        for images in islice(random_images(len(windows.strides), rng), 9):
            program = windows.program(*images)
            program = resized(program, rng) if rng.random() < 0.2 else program
            if teir.problems(program):
                continue
            constant = (program.tensors[1].name,) if number % 2 else ()
            texts = known.setdefault((kind_of(program), constant), [])
            served += sum(check(program, text, source, target, threads, constant) for text, source in texts)
            try:
                made = followed.write(program, target, threads, constant)
            except tw.TileweaveError:  # scratch memory is too small
                continue
            if made is None:
                continue
            nest, text = made
            direct += bool(nest.tables)
            texts.append((text, nest.source))
            assert check(program, text, nest.source, target, threads, constant), f"seed {block}, {number}"
    assert served > 2
    assert direct > 20


@pytest.mark.parametrize("block", range(4))
def test_values_of_convolutions_again_have_the_bits_of_their_own_code(block: int) -> None:
    """Also where weights are known, and arranged once for all that read them so."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng, draw, again = random.Random(seed), np.random.default_rng(seed), 0
    target = replace(host(), vector_bytes=32, registers=16) if block % 2 and host().vector_bytes == 64 else host()
    for number in range(40):
        if number > 3 and again:
            break
        windows, threads, codes = random_windows(rng), rng.choice((1, 2)), []
        for images in islice(random_images(len(windows.strides), rng), 4):
            program = windows.program(*images)
            ends = bounds(program)
            dtype = "f4" if windows.dtype == "FP32" else "f8"
            arrays = [
                draw.standard_normal(ends[s.name][1] // int(dtype[1]) + 1).astype(dtype)
                for s in program.tensors
                if not s.size_bytes
            ]
            results = []
            for cache, constant in ((False, ()), (True, ()), (True, (program.tensors[1].name,))):
                kernel = cpu.compile(program, threads=threads, target=target, cache=cache, constant=constant)
                given = [array.copy() for array in arrays]
                kernel(*kernel.arranged(given))
                results.append(given[-1].tobytes())
                again += cache and any(kernel._variant is other for other in codes)
                codes.append(kernel._variant)
            assert results[0] == results[1] == results[2], f"seed {seed}: {windows}, {program}"
    assert again


@pytest.mark.parametrize("kind", ["alone", "bias", "chain"])
@pytest.mark.parametrize("known", [False, True])
def test_products_of_other_sizes_have_the_bits_of_their_own_code(kind: str, known: bool) -> None:
    """With weights that are known, which are arranged, too."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng, draw, kernels, again = random.Random(seed), np.random.default_rng(seed), [], 0
    n, k = rng.choice((96, 160, 192, 256)), rng.randrange(40, 300)
    w, row = draw.standard_normal((k, n), np.float32), draw.standard_normal(n, np.float32)
    for m in [rng.randrange(60, 300) for _ in range(12)]:
        x, out = draw.standard_normal((m, k), np.float32), np.empty((m, n), np.float32)
        operands, rows_ = (dense_of(x), dense_of(w)), teir.Operand(tw.layout.strided((m, n), (0, 1)), "FP32")
        how = {"init": rows_} if kind == "bias" else {}
        if kind == "chain":
            steps = [("Add", (0, 1)), ("Tanh", (-1,))]
            how = {"chain": steps, "extras": [rows_], "sums": "FP32", "added": ""}
        program = teir.emit_contraction("ik,kj->ij", operands, dense_of(out), **how)
        results = []
        arrays = {"in0": x, "in1": w, "bias": row, "in2": row, "out": out}
        for cache in (True, False):
            kernel = cpu.compile(program, threads=1, cache=cache, constant=("in1",) if known else ())
            again += any(kernel._variant is one._variant for one in kernels)
            given = [arrays[spec.name] for spec in program.tensors if spec.role != "scratch"]
            kernel(*kernel.arranged(given))
            results.append(out.tobytes())
            kernels += [kernel] * cache
        assert results[0] == results[1]
    assert again > 2


def test_the_inverse_of_a_count_comes_from_the_table() -> None:
    shared = set()
    for rows_, width in ((40, 96), (48, 160), (64, 224)):
        x = np.random.default_rng(width).standard_normal((rows_, width), dtype=np.float32)
        program = rows.layer_norm(dense_of(x), dense_of(x))
        kernel, out = cpu.compile(program, threads=1), np.empty_like(x)
        kernel(x, out)
        mean, variance = x.mean(1, keepdims=True), x.var(1, keepdims=True)
        np.testing.assert_allclose(out, (x - mean) / np.sqrt(variance + 1e-5), rtol=1e-4, atol=1e-5)
        shared.add(id(kernel._variant))
    assert len(shared) < 3


def dense_of(array: np.ndarray) -> teir.Operand:
    return dense_bytes(array.shape, array.strides)


def dense_bytes(shape: tuple[int, ...], strides: tuple[int, ...]) -> teir.Operand:
    return teir.Operand(tw.layout.strided(shape, [s // 4 for s in strides]), "FP32")


@pytest.mark.parametrize("seed", range(6))
def test_values_of_kernels_again_have_the_bits_of_their_own_code(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    for _ in range(6):
        x = np.random.default_rng(seed).standard_normal((rng.randrange(1, 90), rng.randrange(1, 300)), dtype=np.float32)
        program, results = rows.softmax(dense_of(x), dense_of(x)), []
        for own in (False, True):
            if own:
                monkeypatch.setattr(kernels, "find", lambda *_: None)
            out = np.empty_like(x)
            cpu.compile(replace(program, name=f"own {own}" if own else "again"), threads=rng.choice((1, 2)))(x, out)
            results.append(out)
        monkeypatch.undo()
        assert results[0].tobytes() == results[1].tobytes()


def broken(program: teir.Program, rng: random.Random) -> teir.Program:
    """The same program with one size that may be none."""
    if program.axes and rng.random() < 0.8:
        axis = rng.choice(program.axes)
        strides = list(axis.strides)
        if strides and rng.random() < 0.5:
            strides[rng.randrange(len(strides))] = rng.choice((2**61, 0, -4, 4.0, True, "4", 12))
            other = replace(axis, strides=tuple(strides))
        else:
            other = replace(axis, extent=rng.choice((0, -1, 1, 2, 3.0, True, 2**62, 2**63, "3")))
        return replace(program, axes=tuple(other if one is axis else one for one in program.axes))
    tensors = [replace(t, size_bytes=rng.choice((0, -1, 64, 64.0, True))) for t in program.tensors]
    return replace(program, tensors=tuple(rng.choice(pair) for pair in zip(tensors, program.tensors, strict=True)))


@pytest.mark.parametrize("block", range(3))
def test_a_program_like_a_well_formed_one_is_refused_for_its_sizes_alone(block: int) -> None:
    rng = random.Random(block)
    refused = 0
    for _ in range(60):
        program = random_rows(rng) if rng.random() < 0.4 else random_programs.any_program(rng.randrange(10**6))
        teir.verify(program)
        for _ in range(6):
            other = broken(resized(program, rng), rng)
            if teir.problems(other):
                refused += 1
                with pytest.raises(tw.errors.VerifyError):
                    teir.verify(other)
            else:
                teir.verify(other)
    assert refused > 30


def test_numbers_and_strides_that_a_kind_does_not_tell_apart_are_looked_at() -> None:
    """An integer is filled with integers alone, and a document has no negative strides."""
    out, axis = teir.TensorSpec("out", "INT32", "out"), teir.Axis("m", 3, (4,), (0,))
    fill = teir.Primitive("c", "Fill", (("M", ("m",)), ("N", ())), ("out",), (("value", 2.0),))
    program = teir.Program((out,), (axis,), ("i",), (teir.Invocation("i", "c"),), (fill,))
    teir.verify(program)
    for value in (2.5, 2.0**40):
        with pytest.raises(tw.errors.VerifyError, match="does not hold it"):
            teir.verify(replace(program, primitives=(replace(fill, metadata=(("value", value),)),)))
    copy = teir.Primitive("c", "Copy", fill.axes, (), (("data_type", "FP32"),))
    tensors = (teir.TensorSpec("in0", "FP32", "in"), replace(out, dtype="FP32"))
    axes = (teir.Axis("m", 3, (4, 4), (0, 0)),)
    document = replace(program, tensors=tensors, axes=axes, primitives=(copy,), profile="document")
    teir.verify(document)
    with pytest.raises(tw.errors.VerifyError, match="strides are"):
        teir.verify(replace(document, axes=(replace(axes[0], strides=(-4, 4)),)))


def short_rows(kind: str, arrays: list[np.ndarray], out: np.ndarray) -> teir.Program:
    """A program on rows of a few dozen elements."""
    x, *rest = operands = [dense_of(array) for array in arrays]
    if kind == "norm":
        return rows.layer_norm(x, dense_of(out))
    if kind == "sum":
        return teir.emit_reduction("sum", x, dense_of(out), "ab->a")
    steps = [("Add", (0, 1)), ("Exp", (-1,)), ("Mul", (-2, 0))] if rest else [("Exp", (0,))]
    return teir.emit_chain(steps, operands, dense_of(out), name=kind)


@pytest.mark.parametrize("kind", ["norm", "sum", "chain", "turned", "apart", "from behind"])
def test_short_rows_of_many_lengths_share_code_to_the_same_bits(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = random.randrange(10**6)
    rng, random_ = random.Random(seed), np.random.default_rng(seed)
    lengths = [n for k in range(7) for n in rng.sample(range(8 * k + 2, 8 * k + 10), 2)]
    rng.shuffle(lengths)
    texts, held = set(), []  # kernels whose texts are to be found again
    for n in lengths:
        x = random_.standard_normal((30, n), dtype=np.float32)
        y = random_.standard_normal((n, 30), dtype=np.float32).T
        if kind in ("apart", "from behind"):  # elements further from each other than any vector reads
            y = random_.standard_normal((30, n, 7), dtype=np.float32)[:, :: 1 if kind == "apart" else -1, 3]
        arrays = [x] if kind in ("norm", "sum") else [x, random_.standard_normal((30, n), dtype=np.float32)]
        arrays = [x, y] if kind in ("turned", "apart", "from behind") else arrays
        out = np.empty(30 if kind == "sum" else (30, n), np.float32)
        program, results = short_rows(kind, arrays, out), []
        for own in (False, True):
            with monkeypatch.context() as patch:
                if own:
                    patch.setattr(kernels, "find", lambda *_: None)
                    patch.setattr(followed, "LENGTHS", 100)
                made = cpu.compile(replace(program, name=f"{kind} {own} {seed}"), threads=1)
                held.append(made)
                made(*arrays, out)
                results.append(out.copy())
            texts.update([] if own else [made.source])
        assert results[0].tobytes() == results[1].tobytes(), f"{kind}, seed {seed}, length {n}"
    assert len(texts) < len(lengths), f"seed {seed}"


@pytest.mark.parametrize("kind", ["relu", "bias relu", "chain", "sum", "max", "two"])
@pytest.mark.parametrize("threads", [1, 2])
def test_sizes_that_all_differ_share_code_to_the_same_bits(
    kind: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products with what follows them, in each other's tiles where these take about the time; reductions in pieces."""
    seed = random.randrange(10**6)
    print("seed", seed)
    rng, draw = random.Random(seed), np.random.default_rng(seed)
    texts, held = set(), []
    shapes = 48 if kind == "two" else 24  # two stages have more kinds of code
    for _ in range(shapes):
        m, n, k = (rng.randrange(100, 600) for _ in range(3))
        if kind in ("sum", "max", "two"):
            a = draw.standard_normal((8 * m, n // 4), np.float32)
            arrays, out = [a], np.empty(n // 4, np.float32)
            program = teir.emit_reduction(kind if kind == "max" else "sum", dense_of(a), dense_of(out), "ab->b")
            if kind == "two":
                a = draw.standard_normal((m, 3, n), np.float32)
                arrays, out = [a], np.empty(3, np.float32)
                program = teir.emit_reduction("sum", dense_of(a), dense_of(out), "abc->b")
        else:
            a, b, row = (draw.standard_normal(shape, np.float32) for shape in ((m, k), (k, n), (n,)))
            out, rows_ = np.empty((m, n), np.float32), teir.Operand(tw.layout.strided((m, n), (0, 1)), "FP32")
            how = {"relu": True} | ({"init": rows_} if kind == "bias relu" else {})
            if kind == "chain":
                steps = [("Add", (0, 1)), ("Tanh", (-1,))]
                how = {"chain": steps, "extras": [rows_], "sums": "FP32", "added": ""}
            program = teir.emit_contraction("ik,kj->ij", (dense_of(a), dense_of(b)), dense_of(out), **how)
            by_name = {"in0": a, "in1": b, "bias": row, "in2": row}
            arrays = [by_name[spec.name] for spec in program.tensors if spec.role == "in"]
        results = []
        for own in (False, True):
            with monkeypatch.context() as patch:
                if own:
                    patch.setattr(kernels, "find", lambda *_: None)
                made = cpu.compile(replace(program, name=f"{kind} {own} {seed}"), threads=threads)
            held.append(made)
            out.fill(np.nan)
            by_role = iter(arrays)
            made(*[out if spec.role == "out" else next(by_role) for spec in program.tensors if spec.role != "scratch"])
            results.append(out.tobytes())
            texts.update([] if own else [made.source])
        assert results[0] == results[1], f"{kind}, seed {seed}, {m} {n} {k}"
    assert 6 * len(texts) < 5 * shapes, f"seed {seed}"
