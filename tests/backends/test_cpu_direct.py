"""Direct convolutions: their values on random windows, what they may touch, and how they say what they do."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import replace

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import tileweave as tw
from tileweave import graph as tg
from tileweave.backends.cpu import compile, followed
from tileweave.backends.cpu.direct import match
from tileweave.backends.cpu.direct.match import LONG_ROW
from tileweave.backends.cpu.target.target import host
from tileweave.layout import strided
from tileweave.lower.emitted import OperandView, program
from tileweave.lower.programs import program_kind
from tileweave.teir import Operand, emit_einsum

TIMES = 12


def definition(x, w, stride, dilation, groups):
    """Windows times filters, in float64."""
    rank = w.ndim - 2
    spans = [d * (k - 1) + 1 for k, d in zip(w.shape[2:], dilation, strict=True)]
    seen = sliding_window_view(x.astype(np.float64), spans, axis=tuple(range(2, rank + 2)))
    seen = seen[(slice(None), slice(None), *(slice(None, None, s) for s in stride))]
    seen = seen[(..., *(slice(None, None, d) for d in dilation))]
    seen = seen.reshape(x.shape[0], groups, w.shape[1], *seen.shape[2:])
    heavy = w.astype(np.float64).reshape(groups, w.shape[0] // groups, *w.shape[1:])
    inner = list(range(20, 20 + rank))
    outer = list(range(10, 10 + rank))
    out = np.einsum(seen, [0, 1, 2, *outer, *inner], heavy, [1, 3, 2, *inner], [0, 1, 3, *outer], optimize=True)
    return out.reshape(x.shape[0], w.shape[0], *out.shape[3:])


def compiled(x, w, out, *, threads=1, target=None, stride, dilation, groups):
    """The kernel of a convolution of arrays of any strides."""
    source = [tw.source(shape=a.shape, dtype=a.dtype.name) for a in (x, w)]
    made = tg.conv(*source, stride=stride, dilation=dilation, groups=groups)
    operation = made.producer
    assert made.shape == out.shape
    views = {"x": OperandView.of(x), "w": OperandView.of(w)}
    made = program(program_kind(operation, "block", list(views)), views, OperandView.of(out))
    return compile(made, threads=threads, target=target, cache=False)


def drawn(draw):
    """A random convolution: strides and dilations per dimension, groups, shapes."""
    rank = int(draw.integers(1, 4))
    groups = int(draw.choice([1, 1, 2, 8]))
    each = int(draw.choice([1, 1, 2, 3, 5])), int(draw.choice([1, 2, 7, 26]))
    kernel, stride, dilation = (draw.integers(1, high, rank).tolist() for high in (4, 4, 3))
    most = (90, 26, 9)[rank - 1]
    out = draw.integers(1, most, rank).tolist()
    extents = [s * (o - 1) + d * (k - 1) + 1 for s, o, d, k in zip(stride, out, dilation, kernel, strict=True)]
    shapes = (int(draw.integers(1, 3)), groups * each[0], *extents), (groups * each[1], each[0], *kernel)
    return *shapes, stride, dilation, groups, tuple(out)


def targets():
    """This processor, and lesser ones of the same kind."""
    own = host()
    few = replace(own, vector_bytes=32, registers=16) if own.vector_bytes == 64 else own
    return [own, few]


@pytest.fixture(params=[False, True])
def by_filters(request, monkeypatch):
    """Vectors as they are chosen, and of filters wherever a convolution has any."""
    if request.param:
        monkeypatch.setattr(match, "_SURE", 1e9)
        followed._cut.cache_clear()
        yield True
        followed._cut.cache_clear()
    else:
        yield False


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_random_windows_equal_their_definition(dtype, by_filters):
    seed = int(np.random.default_rng().integers(1 << 31))
    print(f"seed {seed}")
    draw = np.random.default_rng(seed)
    direct, panels = 0, 0
    for number in range(TIMES):
        shape, filters, stride, dilation, groups, extents = drawn(draw)
        x, w = draw.standard_normal(shape).astype(dtype), draw.standard_normal(filters).astype(dtype)
        out = np.full((shape[0], filters[0], *extents), np.nan, dtype)
        how = {"stride": stride, "dilation": dilation, "groups": groups}
        kernel = compiled(x, w, out, threads=1 + number % 2, target=targets()[number % 2], **how)
        kernel(x, w, out)
        expected = definition(x, w, stride, dilation, groups)
        bound = 4 * np.finfo(dtype).eps * np.sqrt(w[0].size) * max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(out, expected, rtol=0, atol=bound)
        direct += "direct convolution" in kernel.explain()
        panels += "weights packed first" in kernel.explain()
    assert direct >= 2
    assert panels >= 2 or not by_filters


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_means_of_windows_side_by_side_equal_their_definition(dtype):
    """Whatever part of their vectors is empty: planes whose rows the windows do not divide, too."""
    seed = int(np.random.default_rng().integers(1 << 31))
    print(f"seed {seed}")
    draw = np.random.default_rng(seed)
    for high, wide in [(21, 21), *draw.integers(12, 44, (6, 2)).tolist()]:
        x = draw.standard_normal((3, 5, high, wide)).astype(dtype)
        plan = tw.plan(tg.average_pool(tw.source(shape=x.shape, dtype=dtype, name="x"), 2))
        found = tw.run(plan, bind={"x": x}, threads=1 + wide % 2)
        seen = x[:, :, : high // 2 * 2, : wide // 2 * 2].astype(np.float64)
        expected = seen.reshape(3, 5, high // 2, 2, wide // 2, 2).mean((3, 5))
        np.testing.assert_allclose(found, expected, rtol=0, atol=4 * np.finfo(dtype).eps * np.abs(x).max())


def test_nan_and_infinities_stay_in_the_windows_that_hold_them():
    x, w = np.ones((1, 2, 9, 21), np.float32), np.ones((3, 2, 3, 3), np.float32)
    x[0, 0, 4, 7], x[0, 1, 8, 20] = np.nan, np.inf
    out = np.empty((1, 3, 7, 19), np.float32)
    kernel = compiled(x, w, out, stride=1, dilation=1, groups=1)
    kernel(x, w, out)
    assert "direct convolution" in kernel.explain()
    np.testing.assert_array_equal(out, definition(x, w, (1, 1), (1, 1), 1))


@pytest.mark.skipif(not hasattr(mmap, "PROT_NONE") and not hasattr(ctypes, "CDLL"), reason="pages cannot be locked")
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("short", [False, True])
def test_nothing_before_or_behind_an_array_is_touched(stride, groups, short, by_filters, monkeypatch):
    """Arrays that begin, or end, at the border of a page that may not be read; short rows, each by itself, too."""
    if short:
        monkeypatch.setattr(match, "_SHORT", 99.0)
    library = ctypes.CDLL(None, use_errno=True)
    page = mmap.PAGESIZE
    for side in (0, 1):
        for width in (5, 7, 13, 16, 19, 33):
            held = []

            def bordered(shape, side=side, held=held):
                size = int(np.prod(shape)) * 4
                room = -(-size // page) * page
                memory = mmap.mmap(-1, room + 2 * page)
                base = np.frombuffer(memory, np.uint8)
                start = page if side == 0 else page + room - size
                array = base[start : start + size].view(np.float32).reshape(shape)
                array[:] = np.random.default_rng(3).standard_normal(shape)
                for first in (base.ctypes.data, base.ctypes.data + page + room):
                    assert library.mprotect(ctypes.c_void_p(first), ctypes.c_size_t(page), 0) == 0
                held.append((memory, base))
                return array

            x = bordered((1, 4, 3 + 2 * stride, 3 + (width - 1) * stride))
            w = bordered((8, 4 // groups, 3, 3))
            out = bordered((1, 8, (2 * stride) // stride + 1, width))
            kernel = compiled(x, w, out, stride=stride, dilation=1, groups=groups)
            kernel(x, w, out)
            expected = definition(x, w, (stride, stride), (1, 1), groups)
            np.testing.assert_allclose(out, expected, rtol=0, atol=1e-4)
            assert "direct convolution" in kernel.explain()
            for memory, base in held:
                library.mprotect(ctypes.c_void_p(base.ctypes.data), ctypes.c_size_t(len(memory)), 3)


@pytest.mark.parametrize("seed", range(3))
def test_panels_are_alike_whether_they_are_made_before_or_in_a_call(seed):
    """Of weights that lie dense, turned or flipped, constant or not, of groups, for few pixels and for many."""
    rng = np.random.default_rng([seed, 5])
    for _ in range(4):
        groups, each, channels = (int(k) for k in rng.integers(1, (3, 70, 20)))
        kernel, step, side = (int(k) for k in rng.integers((1, 2, 1), (5, 4, 9)))
        shape = (groups * each, channels, kernel, kernel)
        x = rng.integers(-9, 10, (2, groups * channels, *2 * (step * (side - 1) + kernel,))).astype("f4")
        dense = rng.integers(-9, 10, shape).astype("f4")
        turned = rng.integers(-9, 10, shape[::-1]).astype("f4").T
        for w in (dense, turned, dense[:, :, ::-1, ::-1]):
            wanted = definition(x, w, (step, step), (1, 1), groups)
            for constant in (False, True):
                w.flags.writeable = not constant
                given = tw.source(shape=x.shape, dtype="float32", name="x")
                plan = tw.plan(tw.relu(tg.conv(given, w, stride=step, groups=groups)))
                for threads in (1, 2):
                    found = tw.run(plan, bind={"x": x}, threads=threads)
                    np.testing.assert_array_equal(found, np.maximum(wanted, 0))
            w.flags.writeable = True


@pytest.mark.parametrize("sizes", [(50, 148, 83), (7, 31, 40), (3, 200, 144)])
def test_a_matrix_times_a_vector_per_batch_is_no_convolution(sizes):
    b, i, j = sizes
    layouts = strided((b, i, j), (i * j, j, 1)), strided((b, j), (j, 1)), strided((b, i), (i, 1))
    *given, out = (Operand(layout, "FP32") for layout in layouts)
    kernel = compile(emit_einsum("bij,bj->bi", given, out), threads=1)
    assert "direct" not in kernel.explain(), kernel.explain()


def test_products_behind_one_another_are_no_convolution():
    """A second product in the place of a chain."""
    sides = [Operand(strided(shape, (shape[1], 1)), "FP32") for shape in ((20, 24), (24, 28), (28, 30), (20, 30))]
    arrays = [np.random.default_rng(k).standard_normal(side.shape, np.float32) for k, side in enumerate(sides)]
    kernel = compile(emit_einsum("ab,bc,cd->ad", sides[:3], sides[3]), cache=False)
    kernel(*arrays)
    np.testing.assert_allclose(arrays[3], arrays[0] @ arrays[1] @ arrays[2], rtol=0, atol=1e-3)


def small(own):
    """A processor whose masks take vector registers, of which there are 16, as this one allows."""
    without = own.features.replace("+avx512", "-avx512")
    return replace(own, features=without, vector_bytes=min(own.vector_bytes, 32), registers=16)


@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (1, 2), (3, 2)])
def test_pixels_two_apart_are_not_packed(kernel, stride):
    """Without AVX-512 a product of neighbouring pixels is; where they are picked, vectors are of filters."""
    rng = np.random.default_rng(kernel + stride)
    x = rng.integers(-9, 10, (2, 130, 27 * stride + kernel, 29 * stride + kernel)).astype("f4")
    for filters in (64, 6):
        w = rng.integers(-9, 10, (filters, 130, kernel, kernel)).astype("f4")
        out = np.empty((2, filters, 28, 30), np.float32)
        how = {"stride": (stride, stride), "dilation": (1, 1), "groups": 1}
        made = compiled(x, w, out, target=small(host()), **how)
        made(x, w, out)
        np.testing.assert_array_equal(out, definition(x, w, groups=1, stride=(stride, stride), dilation=(1, 1)))
        assert ("direct convolution" in made.explain()) == (stride == 2)
        assert filters == 6 or ("weights packed first" in made.explain()) == (stride == 2)


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_vectors_that_end_with_their_rows_compute_some_pixels_twice(seed, short, by_filters, monkeypatch):
    """And rows that are shorter than a vector have one under a mask."""
    rng = np.random.default_rng([seed, 17])
    lanes = host().lanes(4)
    if short:
        monkeypatch.setattr(match, "_SHORT", 99.0)
    n, channels, filters = (int(k) for k in rng.integers(1, (4, 9, 20)))
    height, step = int(rng.integers(3, 12)), 1 + seed % 2
    width = int(rng.integers(2, lanes)) if short else int(rng.integers(lanes + 1, 5 * lanes))
    x = rng.integers(-9, 10, (n, channels, step * height + 2, step * width + 2)).astype("f4")
    w = rng.integers(-9, 10, (filters, channels, 3, 3)).astype("f4")
    bias = rng.integers(-9, 10, (filters, 1, 1)).astype("f4")
    wanted = definition(x, w, (step, step), (1, 1), 1) + bias
    more = rng.integers(-9, 10, wanted.shape).astype("f4")
    given = tw.source(shape=x.shape, dtype="float32", name="x")
    summed = tg.conv(given, w, stride=step) + bias
    for tensor, right in (
        (tw.relu(summed), np.maximum(wanted, 0)),
        (tw.relu(summed + more), np.maximum(wanted + more, 0)),
    ):
        plan = tw.plan(tensor)
        for threads in (1, 2):
            np.testing.assert_array_equal(tw.run(plan, bind={"x": x}, threads=threads), right)


@pytest.mark.parametrize("seed", range(4))
def test_long_rows_are_computed_one_after_the_other(seed):
    """Their vectors have no masks, and the table of one row serves all, whatever is added to each pixel."""
    rng = np.random.default_rng([seed, 41])
    lanes = host().lanes(4)
    n, channels, filters, step = int(rng.integers(1, 3)), int(rng.integers(1, 3)), int(rng.integers(1, 5)), 1 + seed % 2
    height, width = int(rng.integers(3, 6)), LONG_ROW * lanes + int(rng.integers(0, lanes)) * (seed > 0)
    x = rng.integers(-9, 10, (n, channels, step * height + 2, step * width + 2)).astype("f4")
    w = rng.integers(-9, 10, (filters, channels, 3, 3)).astype("f4")
    wanted = definition(x, w, (step, step), (1, 1), 1)
    more = rng.integers(-9, 10, wanted.shape).astype("f4")
    given = tw.source(shape=x.shape, dtype="float32", name="x")
    summed = tg.conv(given, w, stride=step)
    for tensor, right in ((summed, wanted), (tw.relu(summed + more), np.maximum(wanted + more, 0))):
        plan = tw.plan(tensor)
        for threads in (1, 2):
            np.testing.assert_array_equal(tw.run(plan, bind={"x": x}, threads=threads), right)
    kernel = compiled(x, w, np.empty(wanted.shape, np.float32), stride=step, dilation=1, groups=1)
    assert f" {n * height} images and groups" in kernel.explain()


def test_a_match_that_is_known_is_not_another_threads(monkeypatch):
    """What was matched last is replaced by another thread while it is compared."""
    form = object()

    class Meanwhile:
        def __eq__(self, other):
            match._last = (object(), other, frozenset(), "another form's")
            return True

        __hash__ = None

    monkeypatch.setattr(match, "_last", (form, Meanwhile(), frozenset(), "its own"))
    assert match.match(form, host()) == "its own"


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.usefixtures("by_filters")
def test_a_result_may_lie_where_the_tensor_lies_that_its_chain_adds(threads: int) -> None:
    rng = np.random.default_rng()
    for filters in rng.choice(np.arange(8, 60), 6, replace=False).tolist():
        print(f"{filters} filters")
        w = rng.integers(-3, 4, (filters, 5, 3, 3)).astype("f4")
        bias = rng.integers(-3, 4, (filters, 1, 1)).astype("f4")
        image, before = (rng.integers(-3, 4, (1, c, 9 + d, 33 + d)).astype("f4") for c, d in ((5, 2), (filters, 0)))
        x = tw.source(shape=image.shape, dtype="float32", name="x")
        added = tw.source(shape=before.shape, dtype="float32", name="added")
        plan = tw.plan(tw.relu(tw.conv(x, w) + bias + added))
        out = before.copy()
        tw.run(plan, bind={"x": image, "added": out}, out=[out], threads=threads)
        seen = sliding_window_view(image, (3, 3), axis=(2, 3))
        sums = np.einsum("ncxyij,fcij->nfxy", seen, w, optimize=True)
        np.testing.assert_array_equal(out, np.maximum(sums + bias + before, 0))
