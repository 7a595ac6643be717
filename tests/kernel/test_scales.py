"""Products with a scale (e8m0) for every 32 terms: in tensor memory by `kind::mxf8f6f4`, in registers term by term."""

import shutil
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tileweave import kernel as tk
from tileweave.backends.cuda import compile
from tileweave.backends.cuda.printer.entry import arguments, lowered, run, run_program, run_together, text
from tileweave.errors import BackendError, VerifyError
from tileweave.kernel.dispatch.layouts.claims import claims, verify_claims

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[2] / "examples" / "kernels")]
mutants, mx_gemm = import_module("mutants"), import_module("mx_gemm")

needs_gpp = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
#: Sizes that no tile divides, types of both factors, tiles: two blocks of rows of B, two of scales.
CASES = [
    ((200, 150, 272), (E4M3, E5M2), {"bn": 128, "stages": 3}),
    ((100, 300, 300), (E5M2, E4M3), {"bn": 256, "stages": 2}),
    ((130, 128, 400), (E4M3, E4M3), {"bk": 256, "stages": 1}),
]


@pytest.mark.parametrize(("sizes", "kinds", "options"), CASES)
def test_both_forms_are_the_scaled_product_of_numpy(sizes, kinds, options):
    arrays = mx_gemm.arguments(*sizes, kinds)
    want = mx_gemm.expected(*arrays[:-1])
    for kernel, given in ((mx_gemm.mx_gemm, options), (mx_gemm.mx_gemm_anywhere, {})):
        found = kernel.check(*arrays, **given).outputs["C"]
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-3)


@needs_gpp
@pytest.mark.parametrize("order", ["forward", "reversed"])
def test_text_leaves_what_the_interpreter_leaves_bit_for_bit(order):
    cases = [(mx_gemm.arguments(*sizes, kinds), options) for sizes, kinds, options in CASES]
    runs = [(mx_gemm.mx_gemm.trace(*arrays, **options), arrays) for arrays, options in cases]
    run_together(runs, "cpu", "sm_100a", check=order == "forward", order=order, optimise=False)
    for arrays, options in cases:
        want = mx_gemm.mx_gemm.check(*arrays, arch="sm_100a", **options).outputs["C"]
        assert arrays[-1].tobytes() == want.tobytes() and want.any()


@needs_gpp
@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_sums_in_registers_are_scaled_as_they_are_added(arch):
    arrays = mx_gemm.arguments(70, 90, 200)
    run(mx_gemm.mx_gemm_anywhere.trace(*arrays), arrays, arch=arch, check=True)
    assert arrays[-1].tobytes() == mx_gemm.mx_gemm_anywhere.check(*arrays, arch=arch).outputs["C"].tobytes()
    assert "mul" in str(mx_gemm.mx_gemm_anywhere.expand(*arrays, arch=arch))


@needs_gpp
def test_an_automatic_product_has_its_scales_in_tensor_memory():
    arrays = mx_gemm.arguments(200, 150, 272)
    options, kernel = {"bm": 128, "bn": 128}, mx_gemm.mx_gemm_anywhere
    table = kernel.explain(*arrays, arch="sm_100a", **options)
    assert "tcgen05      yes: 4 steps of m128n128k32, a scale of 32 terms each by tcgen05.cp" in table
    assert "192 columns of tensor memory" in table
    run(kernel.trace(*arrays, **options), arrays, arch="sm_100a", check=True)
    assert arrays[-1].tobytes() == kernel.check(*arrays, arch="sm_100a", **options).outputs["C"].tobytes()
    np.testing.assert_allclose(arrays[-1], mx_gemm.expected(*arrays[:-1]), rtol=1e-5, atol=1e-3)
    small = kernel.explain(*arrays, arch="sm_100a")
    assert "tcgen05      no: m = 64 of a product with scales is not 128; n = 64 of" in small
    assert small.count("gemm part") == 4 and "mma.sync     yes" in small


def test_dispatch_says_what_it_took_and_what_stands_against_it():
    arrays = mx_gemm.arguments(200, 150, 272)
    table = mx_gemm.mx_gemm.explain(*arrays, arch="sm_100a")
    assert "tcgen05      yes: 4 steps of m128n128k32, a scale of 32 terms each by tcgen05.cp" in table
    assert "192 columns of tensor memory" in table  # 128 of sums, 32 for each factor's scales
    with pytest.raises(BackendError, match="sm_90a has no tensor memory"):
        mx_gemm.mx_gemm.explain(*arrays, arch="sm_90a")


def test_scales_that_end_before_their_factor_are_refused():
    for kernel in (mx_gemm.mx_gemm, mx_gemm.mx_gemm_anywhere):
        A, B, scale_a, scale_b, C = mx_gemm.arguments(200, 150, 272)
        for name, given in (("scale_a", (scale_a[:, :8], scale_b)), ("scale_b", (scale_a, scale_b[:149]))):
            with pytest.raises(VerifyError, match=f"{name} is too small") as caught:
                kernel.trace(A, B, *map(np.ascontiguousarray, given), C)
            assert caught.value.rule == "extent"


def single(rows=128, columns=128, depth=128, layout="scales", dtype="e4m3", scales="e8m0"):
    """One product of whole tiles that threads bring, with scales that lie as asked."""

    @tk.kernel
    def product(k, A, B, fa, fb, C):
        sa, sb = (k.shared((n, depth), like=v, swizzle=128) for n, v in ((rows, A), (columns, B)))
        ga, gb = (k.shared((n, depth // 32), like=v, layout=layout) for n, v in ((rows, fa), (columns, fb)))
        acc, done = k.tensor_memory(columns, rows=rows), k.barrier(1)
        with k.cta(threads=128) as cta:
            for to, source in ((sa, A), (sb, B), (ga, fa), (gb, fb)):
                cta.copy(to, source)
            cta.fence("proxy.async")
            cta.sync()
            with k.warp[0]() as mma:
                mma.gemm(acc, sa, sb, keep=False, scales=(ga, gb))
                mma.commit("tcgen05", done)
            cta.wait(done, parity=0)
            cta.fence("tcgen05.after")
            cta.copy(C, cta.load(acc))

    shapes = ((rows, depth), (columns, depth), (rows, depth // 32), (columns, depth // 32), (rows, columns))
    return product, [tk.spec(s, t) for s, t in zip(shapes, (dtype, dtype, scales, scales, "f32"), strict=True)]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"rows": 64, "layout": None}, "m = 64 of a product with scales is not 128"),
        ({"columns": 64, "layout": None}, "n = 64 of a product with scales is no multiple of 128"),
        ({"layout": None}, "the scales of A do not lie as tensor memory takes them: layout='scales'"),
        ({"dtype": "f16"}, "factors with scales are e4m3 or e5m2"),
        ({"scales": "u8"}, "not e8m0"),
        ({"columns": 64}, "scales of shape"),
    ],
)
def test_what_no_instruction_scales_is_refused_with_the_reason(options, reason):
    kernel, specs = single(**options)
    with pytest.raises((BackendError, VerifyError)) as caught:
        kernel.explain(*specs, arch="sm_100a")
    assert reason in str(caught.value) and "test_scales.py:" in str(caught.value)


@needs_gpp
@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        ("", ""),
        ("no fence.proxy.async", "proxy-fence"),
        ("no tcgen05.fence_after", "tensor-fence"),
        ("no tcgen05.dealloc", "tensor-leak"),
        ("other number", "tensor-descriptor"),
    ],
)
def test_faults_of_scales_are_named_with_their_line(fault, rule):
    kernel, _ = single()
    arrays = mx_gemm.arguments(128, 128, 128)
    traced = kernel.trace(*arrays)
    program = lowered(traced, "sm_100a").program
    if fault:
        program = next(one for what, _, one in mutants.mutants(program) if what.startswith(fault))
    given, _ = arguments(traced, program, dict(zip([p.name for p in traced.params], arrays, strict=True)))
    if not fault:
        run_program(program, given, check=True)
        np.testing.assert_allclose(arrays[-1], mx_gemm.expected(*arrays[:-1]), rtol=1e-5, atol=1e-3)
        return
    with pytest.raises(BackendError) as caught:
        run_program(program, given, check=True)
    found = [f for f in caught.value.findings if not f.note]
    assert rule in {f.rule for f in found} and all(".py:" in f.place for f in found if f.rule != "tensor-leak")


def test_addresses_and_numbers_are_held_against_the_layouts():
    arrays = mx_gemm.arguments(200, 300, 272)
    program = lowered(mx_gemm.mx_gemm.trace(*arrays, bn=256, stages=2), "sm_100a").program
    assert not list(claims(program))
    seen = Counter()
    for what, line, faulty in mutants.misplaced(program):
        seen[what.split(":")[0]] += 1
        with pytest.raises(VerifyError) as caught:
            verify_claims(faulty)
        assert line is None or caught.value.line == line, what
    print(dict(seen))
    assert seen["tcgen05"] >= 60


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("options", [options for _, _, options in CASES])
def test_the_text_compiles_without_spills(options):
    kernel = mx_gemm.mx_gemm.trace(*mx_gemm.arguments(200, 300, 272), **options)
    assert compile(text(kernel, "sm_100a"), "sm_100a").kernels["mx_gemm"].spill_bytes == 0


def test_texts_without_scales_decline_them():
    arrays = mx_gemm.arguments(64, 64, 128)
    for target in ("triton", "gluon"):
        with pytest.raises(BackendError, match="scales"):
            mx_gemm.mx_gemm_anywhere.text(target, *arrays)
