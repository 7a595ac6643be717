"""Copies and sums between tensors over a mesh: which collective their layouts make, right as operators and as text."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from tileweave import kernel as tk
from tileweave.backends.cuda.printer.entry import run_together
from tileweave.errors import VerifyError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "kernels"))

import collectives

needs_gpp = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
#: Collective -> elements that a device sends or receives, of n elements over d devices, by the best algorithm.
WORDS = {
    "permute": lambda n, d: n // d, "all-gather": lambda n, d: (d - 1) * n // d,
    "all-to-all": lambda n, d: (d - 1) * n // d**2,
    "reduce-scatter": lambda n, d: (d - 1) * n // d, "all-reduce": lambda n, d: 2 * (d - 1) * n // d,
}  # fmt: skip


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("name", collectives.CASES)
def test_layouts_say_which_collective_it_is(name, devices):
    rows, columns = 13 * devices, 9 * devices
    kernel, arguments, filled, want = collectives.case(name, devices, rows, columns)
    kernel.run(*arguments)
    assert all((one == want).all() for one in filled) and want.any()
    said = next(row.split("yes: ")[1] for row in kernel.explain().splitlines() if "collective " in row)
    assert said.startswith(name)
    if name in WORDS:
        assert said.endswith(f": {WORDS[name](rows * columns, devices)} words a device")


@needs_gpp
@pytest.mark.parametrize(("devices", "check"), [(4, True), (8, False)])
def test_printed_text_moves_the_same(devices, check):
    cases = [collectives.case(name, devices, 13 * devices, 9 * devices) for name in collectives.CASES]
    runs = [(kernel.trace(*arguments), arguments) for kernel, arguments, _, _ in cases]
    run_together(runs, "cpu", "sm_90a", check=check, optimise=False, order="reversed")
    for name, (_, _, filled, want) in zip(collectives.CASES, cases, strict=True):
        assert all((one == want).all() for one in filled), name


def test_a_mesh_of_two_dimensions_is_blocks_of_both():
    """Rows over pairs of devices and columns within them, and the other way round: devices 1 and 2 exchange theirs."""
    x = np.arange(26 * 18, dtype=np.float32).reshape(26, 18)
    y = np.zeros_like(x)
    apart = "(2:{}@gpu, 13:9, 2:{}@gpu, 9:1)"
    move, _ = collectives.on(4)
    move.run(tk.placed(x, apart.format(2, 1)), tk.placed(y, apart.format(1, 2)))
    assert (x == y).all() and "collective   yes: permute among {1, 2}: 117 words a device" in move.explain()


@pytest.mark.parametrize(("groups", "each"), [(2, 4), (4, 2), (3, 1)])
def test_a_mesh_of_two_named_axes_has_collectives_over_either(groups, each):
    terms, sums, copies, said = collectives.over_both(groups, each, 5, 7)
    assert (sums == terms.sum(0)).all() and all((one == sums).all() for one in copies) and terms.any()
    words = groups * each * 5 * 7
    if each > 1:
        assert said[0].startswith("reduce-scatter over gpu among {")
        assert said[0].endswith(f": {(each - 1) * words // groups // each} words a device")
    assert said[1].startswith("all-gather over node among {")
    assert said[1].endswith(f": {(groups - 1) * words // each // groups} words a device")


@needs_gpp
def test_printed_text_over_two_axes_computes_the_same():
    scatter, gather = collectives.on_both(2, 2)
    terms, sums, copies, _ = collectives.over_both(2, 2, 5, 7)
    mine, both = np.zeros_like(sums), np.zeros_like(copies)
    given = [tk.placed(terms, "(2:1@gpu, 2:35, 2:1@node, 5:7, 7:1)"), tk.placed(mine, "(2:1@gpu, 2:1@node, 5:7, 7:1)")]
    moved = [tk.placed(sums, "(2:1@gpu, 2:1@node, 5:7, 7:1)"), tk.placed(both, "(2:1@node, 2:1@gpu, 10:7, 7:1)")]
    runs = [(kernel.trace(*arguments), arguments) for kernel, arguments in ((scatter, given), (gather, moved))]
    for order in ("forward", "reversed"):
        run_together(runs, "cpu", "sm_90a", check=True, optimise=False, order=order)
        assert (mine == sums).all() and (both == copies).all() and sums.any()
    text = scatter.text("cuda", *given)
    assert "int device" in text and "const int node = device / 2;" in text


def test_places_on_the_axes_of_a_mesh_may_be_read_and_addressed():
    @tk.kernel(mesh={"row": 2, "column": 3})
    def numbers(k, y):
        with k.cta(threads=32) as cta:
            cta.store(y[k.row, k.column], cta.full((1,), 10 * k.row + k.column))

    y = np.zeros((2, 3, 1), np.float32)
    numbers.check(tk.placed(y, "(2:1@row, 3:1@column, 1:1)"))
    numbers.run(tk.placed(y, "(2:1@row, 3:1@column, 1:1)"))
    assert y[..., 0].tolist() == [[0, 1, 2], [10, 11, 12]]
    with pytest.raises(VerifyError, match="lies on depth"):
        numbers.trace(tk.placed(y, "(2:1@row, 3:1@depth, 1:1)"))


def test_what_is_no_collective_is_refused_with_its_line():
    move, _ = collectives.on(2)
    x, y = np.ones((4, 6), np.float32), np.zeros((4, 6), np.float32)
    with pytest.raises(VerifyError, match=r"deals a dimension out by turns(.|\n)*collectives.py:\d+"):
        move.trace(tk.placed(x, "(2:1@gpu, 2:6, 6:1)"), tk.placed(y, "(2:6, 2:1@gpu, 6:1)"))
    with pytest.raises(VerifyError, match="gives a device several blocks"):
        move.trace([x, x], tk.placed(y, "(2:1@gpu, 2:3, 2:1@gpu, 3:1)"))
    with pytest.raises(VerifyError, match="copies of elements"):
        tk.placed(y, "(2:1@gpu, 2:6, 6:1) + [2:1@gpu]")
    with pytest.raises(VerifyError, match="20 elements for shape"):
        tk.placed(y, "(2:1@gpu, 10:1)")
    with pytest.raises(VerifyError) as caught:  # a shard of another device that is not in symmetric memory
        move.check(tk.sharded(x, "gpu", 0, 2), [y, y.copy()])
    assert caught.value.rule == "device"

    @tk.kernel
    def alone(k, y):
        k.own(y)

    with pytest.raises(VerifyError, match="the kernel has no mesh"):
        alone.trace(y)
