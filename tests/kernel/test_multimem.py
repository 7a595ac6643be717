"""Sums over the devices of a mesh by `multimem.ld_reduce`: when dispatch takes it, what it computes, faults by name."""

import shutil
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tileweave import kernel as tk
from tileweave.backends.cuda import Multicast, compile, run
from tileweave.backends.cuda.printer.entry import arguments, lowered, run_program, run_together
from tileweave.errors import BackendError, VerifyError
from tileweave.kernel.dispatch.layouts.claims import claims, verify_claims

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[2] / "examples" / "kernels")]
mutants, gemm_reduce_scatter = import_module("mutants"), import_module("gemm_reduce_scatter")

needs_gpp = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def summed(devices, dtype, rows=24, columns=40, use=None, fn="add", part=None):
    """A sum of a term of each device, all of it on each: the kernel and its arguments, terms that show the order."""

    @tk.kernel(mesh={"gpu": devices})
    def add(k, terms, y):
        i, j = k.grid(y.blocks(0, 8), y.blocks(1, 32))
        box = y.tile(8, 32)[i, j]
        with k.cta(threads=64) as cta:
            if fn == "add":
                cta.sum(box, terms[:part] if part else terms, axis=0, use=use)
            else:
                cta.store(box, cta.reduce(fn, terms.tile(devices, 8, 32)[0, i, j], 0)[0])

    random = np.random.default_rng(devices)
    whole = np.dtype(dtype).kind in "iu"
    drawn = (
        random.integers(0, 99, (devices, rows, columns)) if whole else random.standard_normal((devices, rows, columns))
    )
    x = drawn.astype(dtype)
    spread = tk.placed(x, f"({devices}:1@gpu, {rows}:{columns}, {columns}:1)")
    return add, [spread, [np.zeros((rows, columns), dtype) for _ in range(devices)]]


def table(add, given, arch="sm_90a"):
    return add.explain(*given, arch=arch)


NARROW = ((np.float16, 8), (ml_dtypes.bfloat16, 8))
WIDE = ((np.float32, 4), (np.float64, 1), (np.int32, 1), (np.uint32, 1))


@pytest.mark.parametrize(("dtype", "width"), NARROW + WIDE)
def test_a_load_takes_as_many_elements_as_ptx_allows(dtype, width):
    add, given = summed(4, dtype, use="multimem" if (dtype, width) in NARROW else None)
    element = "1 element " if width == 1 else f"{width} elements "
    assert f"multimem     yes: {element}of 4 devices a load" in table(add, given)
    add, given = summed(4, np.float32, columns=42)
    assert "multimem     yes: 2 elements" in table(add, given)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"arch": "sm_80"}, "needs sm_90, not sm_80"),
        ({"dtype": np.float16}, "f32 is wanted: use='multimem' of sum"),
        ({"part": 2}, "not of all 4 devices: a multicast address is of all"),
        ({"fn": "max"}, "no max of f32, which would drop NaN"),
        ({"use": "peers"}, "use='peers' is asked for"),
    ],
)
def test_what_stands_against_it_is_said(change, reason):
    arch, whole = change.get("arch", "sm_90a"), {"dtype": np.float32, **change}
    whole.pop("arch", None)
    row = next(row for row in table(*summed(4, **whole), arch).splitlines() if "multimem     no: " in row)
    assert reason in row
    if set(change) & {"arch", "part"}:
        with pytest.raises(BackendError, match=r"use='multimem'(.|\n)*" + reason.split(":")[0]):
            table(*summed(4, **whole, use="multimem"), arch)


def test_what_is_no_sum_over_devices_is_refused():
    @tk.kernel
    def alone(k, x, y):
        with k.cta(threads=32) as cta:
            cta.store(y, cta.sum(cta.load(x), 1, use="multimem"))

    with pytest.raises(BackendError, match="not along the devices of a mesh"):
        alone.explain(tk.spec((4, 32), "f32"), tk.spec((4, 1), "f32"))

    @tk.kernel(mesh={"gpu": 4})
    def narrow(k, terms, y):
        with k.cta(threads=32) as cta:
            cta.sum(y, terms, axis=0, use="multimem")

    x = tk.placed(np.zeros((4, 8, 31), np.float16), "(4:1@gpu, 8:31, 31:1)")
    with pytest.raises(BackendError, match="runs of fewer than 2 aligned elements"):
        narrow.explain(x, [np.zeros((8, 31), np.float16) for _ in range(4)])


@needs_gpp
@pytest.mark.parametrize(("devices", "order"), [(4, "forward"), (8, "reversed")])
def test_text_computes_what_the_interpreter_does_bit_for_bit(devices, order):
    """Also where rows and columns are no multiples of a tile: 24 x 40 by tiles of 8 x 32."""
    cases = [summed(devices, dtype, use="multimem") for dtype, _ in NARROW + WIDE]
    runs = [(add.trace(*given), given) for add, given in cases]
    run_together(runs, "cpu", "sm_90a", check=devices == 4, order=order, optimise=False)
    for add, (spread, filled) in cases:
        want = add.check(spread, [np.zeros_like(one) for one in filled], arch="sm_90a").outputs["y"]
        exact = spread.array.astype(np.float64).sum(0)
        for one, other in zip(filled, want, strict=True):
            assert one.tobytes() == other.tobytes() and one.any()
            assert np.allclose(one.astype(float), exact, rtol=1e-2 if one.itemsize == 2 else 1e-5, atol=2e-2)


def scattered():
    random = np.random.default_rng(0)
    a, b = ([random.integers(-3, 4, (rows, 16)).astype(np.float16) for _ in range(4)] for rows in (256, 70))
    c = np.zeros((256, 70), np.float32)
    kernel = gemm_reduce_scatter.gemm_rs.trace(a, b, tk.sharded(c, "gpu", 0, 4), bm=64, bn=64)
    return (
        kernel,
        [a, b, tk.sharded(c, "gpu", 0, 4)],
        c,
        sum(x.astype(float) @ y.T.astype(float) for x, y in zip(a, b, strict=True)),
    )


@needs_gpp
@pytest.mark.parametrize(
    ("fault", "rule"),
    [("", ""), ("no fence.proxy.alias", "proxy-fence"), ("no wait", "race-stream"), ("no signal", "deadlock")],
)
def test_a_missing_statement_between_devices_is_named_with_its_line(fault, rule):
    kernel, given, c, exact = scattered()
    program = lowered(kernel, "sm_90a").program
    assert any("multimem" in str(one) for one in [program.multicast, program.body])
    if fault:
        program = next(one for what, _, one in mutants.mutants(program) if what == fault)
    named, finish = arguments(kernel, program, dict(zip("ABC", given, strict=True)))
    if not fault:
        run_program(program, named, check=True)
        for one in finish:
            one()
        assert (c == exact).all()
        return
    with pytest.raises(BackendError) as caught:
        run_program(program, named, check=True)
    found = {f.rule: f for f in caught.value.findings if not f.note}
    assert rule in found, found
    if rule != "deadlock":
        assert "gemm_reduce_scatter.py:24" in found[rule].place


def test_addresses_of_all_devices_are_held_against_the_layout():
    kernel, *_ = scattered()
    program = lowered(kernel, "sm_90a").program
    assert not list(claims(program))
    seen = Counter()
    for what, _, faulty in mutants.misplaced(program):
        if what.startswith("multimem"):
            seen[what] += 1
            with pytest.raises(VerifyError):
                verify_claims(faulty)
    assert sum(seen.values()) >= 3


TEXT = """__global__ void one(float* y, const float* all) {
  float v;
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add.f32 %0, [%1];" : "=f"(v) : "l"(SOURCE) : "memory");
  y[threadIdx.x] = v;
}"""


@needs_gpp
@pytest.mark.parametrize(
    ("source", "rule"), [("y", "multicast"), ("all + 32", "out-of-bounds"), ("(const char*)all + 2", "misaligned")]
)
def test_text_that_breaks_a_rule_of_multicast_addresses_is_refused(source, rule):
    given = {"y": np.zeros(32, np.float32), "all": Multicast((np.ones(32, np.float32), np.ones(32, np.float32)))}
    with pytest.raises(BackendError) as caught:
        run(TEXT.replace("SOURCE", source), 1, 32, given, check=True)
    assert rule in {f.rule for f in caught.value.findings}


@needs_gpp
def test_an_ordinary_access_of_a_multicast_address_is_named():
    given = {"y": np.zeros(32, np.float32), "all": Multicast((np.ones(32, np.float32), np.ones(32, np.float32)))}
    text = "__global__ void one(float* y, const float* all) { y[threadIdx.x] = all[threadIdx.x]; }"
    for check in (False, True):
        with pytest.raises(BackendError) as caught:
            run(text, 1, 32, given, check=check)
        assert "multicast" in {f.rule for f in caught.value.findings}
    with pytest.raises(BackendError, match="a multicast address is a pointer"):
        run("__global__ void one(float all) {}", 1, 32, {"all": given["all"]})


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_text_compiles():
    for dtype, _ in NARROW + WIDE:
        add, given = summed(4, dtype, use="multimem")
        text = add.text("cuda", *given, arch="sm_90a")
        assert "* terms_all" in text and "fence.proxy.alias" in text
        assert compile(text, "sm_90a").kernels["add"].spill_bytes == 0
