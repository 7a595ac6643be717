"""Kernels as Gluon text: every printed layout is the map of ours, texts compile, and the rest is declined."""

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from itertools import product
from math import prod

import numpy as np
import pytest

from backends.gluon_values import run
from backends.test_triton_printer import CASES, KINDS, parts, rows, small_product, traced
from tileweave import kernel as tk
from tileweave.backends import triton
from tileweave.backends.triton.gluon import GluonPrinter, text
from tileweave.backends.triton.gluon_layouts import blocked_bases, mma_bases, once, shared_text
from tileweave.errors import BackendError
from tileweave.kernel import check_kernel
from tileweave.kernel.dispatch.layouts.places import offset
from tileweave.kernel.ir import KernelTensor
from tileweave.layout import parse
from tileweave.layout.f2.swizzle import Swizzle

MISSING = triton.installed(interpreter=False)
needs_triton = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@tk.kernel
def product_of_tiles(k, a, b, c, t=64):
    i, j = k.grid(a.blocks(0, t), b.blocks(0, t))
    with k.cta(threads=128) as cta:
        acc = cta.zeros((t, t), dtype="f32")
        for step in cta.range(a.blocks(1, 32)):
            cta.gemm(acc, a.tile(t, 32)[i, step], b.tile(t, 32)[j, step])
        cta.copy(c.tile(t, t)[i, j], acc)


@tk.kernel
def bias_gelu(k, x, bias, y, t=32):
    i, j = k.grid(x.blocks(0, t), x.blocks(1, t))
    with k.cta(threads=128) as cta:
        h = cta.load(x.tile(t, t)[i, j]) + cta.load(bias.tile(1, t)[0, j])
        cta.store(y.tile(t, t)[i, j], h * 0.5 * (1.0 + cta.erf(h * 0.7071067811865476)))


@tk.kernel
def odd_rows(k, x, y):
    row = k.grid(x.blocks(0, 1))
    with k.cta(threads=64) as cta:
        cta.store(y[row], cta.sum(cta.load(x[row])))


OWN = [
    (product_of_tiles, (rows(100, 70), rows(90, 70), rows(100, 90, dtype="float32"))),
    (bias_gelu, (rows(70, 50, dtype="float32"), rows(1, 50, dtype="float32"), rows(70, 50, dtype="float32"))),
    (odd_rows, (rows(4, 700, dtype="float32"), rows(4, 1, dtype="float32"))),
]
ARRAYS = [case[2] for case in CASES if case[1] != "matmul"] + [arrays for _, arrays in OWN]
KERNELS = [traced(*case)[1] for case in CASES if case[1] != "matmul"] + [f.trace(*arrays) for f, arrays in OWN]
IDS = [kernel.name for kernel in KERNELS]


def printed(kernel):
    """The printer of a kernel that it has printed: layouts with their texts, values with their layouts."""
    printer = GluonPrinter(kernel)
    return printer, printer.module()


def owners(bases, shape):
    """Coordinates -> the (thread, slot)s that the bits of a map give them."""
    found = defaultdict(set)
    axes = [bases["reg"], bases["lane"], bases["warp"]]
    for bits in product((0, 1), repeat=sum(map(len, axes))):
        at, numbers, left = [0] * len(shape), [], list(bits)
        for axis in axes:
            numbers.append(sum(left[k] << k for k in range(len(axis))))
            for bit, basis in zip(left, axis, strict=False):
                at = [a ^ b * bit for a, b in zip(at, basis, strict=True)]
            left = left[len(axis) :]
        found[tuple(at)].add((numbers[1] + 32 * numbers[2], numbers[0]))
    return dict(found)


def held_by(held):
    """Coordinates -> the (thread, slot)s that a holding gives them."""
    found = defaultdict(set)
    for warp, lane, slot in product(range(held.warps), range(32), range(held.slots)):
        found[held.coordinates(warp, lane, slot)].add((warp * 32 + lane, slot))
    return dict(found)


def rounded(shape):
    return tuple(1 << max(0, n - 1).bit_length() for n in shape)


@pytest.mark.parametrize("kernel", KERNELS, ids=IDS)
def test_every_printed_layout_gives_each_thread_and_slot_the_element_that_ours_gives(kernel):
    printer, _ = printed(kernel)
    maps = dict(printer.layouts.values())
    distinct = {(layout, str(printer.holdings[name].layout)): name for name, layout in printer.at.items()}
    for (layout, _), name in distinct.items():
        held = printer.holdings[name]
        shape = rounded(held.shape)
        theirs, ours = owners(once(maps[layout](shape)), shape), held_by(held)
        if shape == held.shape:
            assert theirs == ours, (name, layout)
        else:  # slots rounded up: ours are among them
            assert all(who <= theirs[at] for at, who in ours.items()), (name, layout)


def views(layouts):
    """What Triton says of layouts on shapes: per layout, element by element, who holds it (or where it is)."""
    script = (
        "import json, sys\nfrom triton.experimental.gluon import language as gl\n"
        "print(json.dumps([eval(t).format_tensor_view(list(s)) for t, s in json.load(sys.stdin)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(layouts), capture_output=True, text=True, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def seen(view, shape):
    """The view of Triton as coordinates -> (thread, slot)s."""
    cells = re.findall(r"T\s*\d+:\s*\d+(?:\s*\|\s*T\s*\d+:\s*\d+)*", view)
    assert len(cells) == prod(shape), view[:200]
    found = [{tuple(map(int, pair)) for pair in re.findall(r"T\s*(\d+):\s*(\d+)", cell)} for cell in cells]
    return dict(zip(product(*map(range, shape)), found, strict=True))


@needs_triton
def test_the_linear_layouts_of_triton_are_these_maps():
    """Each layout of each kernel, and many more than kernels print, element by element as Triton itself has them."""
    wanted = []
    for kernel in KERNELS:
        printer, _ = printed(kernel)
        for name, layout in printer.at.items():
            shape = rounded(printer.holdings[name].shape)
            made, bits = next((m, f) for m, (n, f) in printer.layouts.items() if n == layout)
            wanted.append((made, shape, bits(shape)))
    random = np.random.default_rng(3)
    for _ in range(60):
        shape = tuple(int(2**e) for e in random.integers(0, 6, 2))
        size, order = tuple(int(2**e) for e in random.integers(0, 3, 2)), tuple(map(int, random.permutation(2)))
        lanes, warps = int(2 ** random.integers(0, 6)), int(2 ** random.integers(0, 3))
        four = size, (lanes, 32 // lanes), (warps, 4 // warps), order
        made = f"gl.BlockedLayout({', '.join(str(list(p)) for p in four)})"
        wanted.append((made, shape, blocked_bases(shape, *four)))
    for shape, grid in product(
        ((16, 8), (32, 32), (64, 128), (128, 16), (64, 1), (1, 32)), ((1, 1), (2, 2), (4, 1), (1, 4))
    ):
        wanted.append((f"gl.NVMMADistributedLayout([2, 0], {list(grid)}, [16, 8])", shape, mma_bases(shape, grid)))
    found = views([(made, shape) for made, shape, _ in wanted])
    for (made, shape, bases), view in zip(wanted, found, strict=True):
        assert seen(view, shape) == owners(bases, shape), (made, shape)


SHARED = [
    ("f16", (32, 32), "32:32@m, 32:1@m", Swizzle(4, 1, 5), "SwizzledSharedLayout(2, 2, 16"),
    ("f16", (64, 64), "64:64@m, 64:1@m", Swizzle(3, 3, 3), "NVMMASharedLayout(128, 16"),
    ("f16", (64, 32), "64:32@m, 32:1@m", Swizzle(2, 3, 3), "NVMMASharedLayout(64, 16"),
    ("f32", (16, 8), "16:8@m, 8:1@m", Swizzle(1, 2, 3), "NVMMASharedLayout(32, 32"),
    ("f32", (32, 32), "32:32@m, 32:1@m", Swizzle(5, 0, 5), "SwizzledSharedLayout(1, 1, 32"),
    ("f32", (32, 32), "32:33@m, 32:1@m", None, "PaddedSharedLayout.with_identity_for([[32, 1]]"),
    ("f32", (8, 32), "8:32@m, 32:1@m", None, "SwizzledSharedLayout(1, 1, 1"),
    ("f32", (32, 32), "32:35@m, 32:1@m", None, ""),
    ("f32", (32, 32), "32:32@m, 32:1@m", Swizzle(2, 0, 2), ""),
    ("f32", (24, 32), "24:32@m, 32:1@m", None, ""),
]


def shared(dtype, shape, layout, swizzle):
    return KernelTensor("s", shape, dtype, "shared", parse(f"({layout})"), swizzle)


@pytest.mark.parametrize(("dtype", "shape", "layout", "swizzle", "want"), SHARED)
def test_shared_layouts_are_named_where_they_put_elements_where_ours_do(dtype, shape, layout, swizzle, want):
    found = shared_text(shared(dtype, shape, layout, swizzle))
    assert found.startswith(f"gl.{want}") if want else found == ""


@needs_triton
def test_the_shared_layouts_of_triton_are_these_maps():
    cases = [(shared_text(shared(*case[:4])), case) for case in SHARED if case[4] and "Padded" not in case[4]]
    for (made, case), view in zip(cases, views([(made, case[1]) for made, case in cases]), strict=True):
        tensor = shared(*case[:4])
        places = [int(row) * tensor.shape[1] + int(column) for row, column in re.findall(r"(\d+):\s*(\d+)", view)]
        assert places == [int(str(offset(tensor, at))) for at in product(*map(range, tensor.shape))], made


@pytest.mark.parametrize("kernel", KERNELS, ids=IDS)
def test_texts_are_python_that_names_layouts_and_warps(kernel):
    found = text(kernel)
    compile(found, kernel.name, "exec")
    assert f"# num_warps={kernel.threads // 32}\n" in found and "gl.constexpr = gl." in found
    assert not re.search(r"\btl\.(?!PropagateNan)", found)


@pytest.mark.parametrize(("kernel", "arrays"), list(zip(KERNELS, ARRAYS, strict=True)), ids=IDS)
def test_texts_compute_what_the_interpreter_computes(kernel, arrays):
    got = [array.copy() for array in arrays]
    run(text(kernel), kernel.name, kernel.grid.size, got)
    want = check_kernel(kernel, arrays).outputs
    for p, array in zip(kernel.params, got, strict=True):
        tolerance = 2e-3 if array.dtype == np.float16 else 1e-4
        np.testing.assert_allclose(array.astype(float), want[p.name].astype(float), tolerance, tolerance)


def test_texts_are_golden(golden):
    for kernel in KERNELS:
        if kernel.name in ("softmax", "transpose", "product_of_tiles"):
            golden(f"gluon_printed_{kernel.name}.py.txt", text(kernel))


@needs_triton
@pytest.mark.parametrize(
    "arch",
    [
        "sm_80",
        "sm_90",
        *(pytest.param(a, marks=pytest.mark.slow) for a in ("sm_86", "sm_89", "sm_100", "sm_103", "sm_120")),
    ],
)
@pytest.mark.parametrize("kernel", KERNELS, ids=IDS)
def test_texts_compile_without_a_device(kernel, arch):
    if arch in ("sm_80", "sm_86") and kernel.name == "fp8_gemm":
        pytest.skip("sm_80 has no e4m3")
    signature = {p.name: KINDS[p.dtype] for p in kernel.params}
    stages = triton.compiled(text(kernel), kernel.name, signature, arch, warps=kernel.threads // 32)
    assert f".target {arch}" in stages["ptx"]
    products = kernel.name in ("product_of_tiles", "gemm_gelu", "grouped_gemm", "attention")
    assert ("mma.sync" in stages["ptx"]) or not products


def refused(function, *arrays, **options):
    with pytest.raises(BackendError) as caught:
        function.text("gluon", *arrays, **options)
    return str(caught.value)


@tk.kernel
def padded_by_three(k, x, y):
    i = k.grid(x.blocks(0, 32))
    with k.cta(threads=32) as cta:
        s = k.shared((32, 32), like=x, layout="(32:35@m, 32:1@m)")
        cta.copy(s, x.tile(32, 32)[i, 0])
        cta.sync()
        cta.copy(y.tile(32, 32)[i, 0], s)


def test_what_gluon_cannot_say_is_declined_with_reason_and_line():
    import matmul

    message = refused(matmul.matmul_roles, rows(130, 136), rows(260, 136), rows(130, 260))
    assert message.startswith("text('gluon'): Gluon cannot say") and "matmul.py:" in message
    message = refused(matmul.matmul, rows(130, 70), rows(90, 70), rows(130, 90))
    assert "a block of 384 threads" in message and "a power of two of warps" in message
    x = np.zeros(128, np.float32)
    message = refused(parts, x, x.copy())
    assert "Gluon cannot say a scope of warps" in message and "test_triton_printer.py:" in message
    a, c = np.zeros((8, 16), np.float16), np.zeros((8, 8), np.float32)
    assert "mma v2 takes tiles from 16 x 8 x 16" in refused(small_product, a, a.copy(), c)
    x = np.zeros((32, 32), np.float32)
    message = refused(padded_by_three, x, x.copy())
    assert "no shared layout of Gluon puts its elements there" in message and "test_gluon_printer.py:" in message
    wide = rows(64, 64, dtype="float32")
    assert "mma v2 has no f32" in refused(product_of_tiles, wide, wide, wide)
