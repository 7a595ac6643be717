"""The atom table against the formulas of the PTX ISA, CuTe DSL's printed tables, ptxas's verdicts, and NumPy."""

import json
from pathlib import Path

import numpy as np
import pytest

from kernel import ptx_text
from tileweave.errors import BackendError
from tileweave.kernel.atoms import BITS, Condition, atom, families, names, refusals
from tileweave.kernel.atoms.mma import tensor_d
from tileweave.layout import cute, parse, same_map, tile_of

DATA = Path(__file__).parent / "data"
CUTE = json.loads((DATA / "cute.json").read_text())
ACCEPTED = {
    name: targets.split()
    for targets, rows in json.loads((DATA / "ptxas.json").read_text())["accepted"].items()
    for name in rows
}


def warp_formula(name, role):
    """row(i), col(i) of the PTX ISA, for the operand of a warp's product; g = lane // 4, q = lane % 4."""
    shape = name.split(".")[3]
    bits = BITS[atom(name)[role].dtype]
    if role in "dc":
        if shape == "m8n8k4":
            return lambda g, q, i: (g, 2 * q + i)
        return lambda g, q, i: (g + 8 * (i >= 2), 2 * q + i % 2)
    k = int(shape.split("k")[1])
    per = max(1, 32 // bits)  # elements of one 32-bit register
    if role == "b":
        return lambda g, q, i: (g, per * q + i % per + 4 * per * (i // per))
    if bits == 64 or k < 4 * per:
        return lambda g, q, i: (g, q)
    return lambda g, q, i: (g + 8 * (i // per % 2), per * q + i % per + 4 * per * (i // per // 2))


@pytest.mark.parametrize("name", list(names("mma")))
def test_warp_products_have_the_fragments_of_the_formulas(name):
    row = atom(name)
    for role, operand in row.operands:
        formula, columns = warp_formula(name, role), operand.shape[1]
        for lane, slots in enumerate(operand.places()):
            for i, place in enumerate(slots):
                assert divmod(place, columns) == formula(lane // 4, lane % 4, i), (role, lane, i)


@pytest.mark.parametrize("name", [n for n in names("wgmma") if "n8k" in n or "n128k" in n or "n256k" in n])
def test_warpgroup_products_have_the_fragments_of_the_formulas(name):
    row = atom(name)
    n = row["d"].shape[1]
    per = 32 // BITS[row["a"].dtype]
    for role, columns in (("d", n), ("a", row["a"].shape[1])):
        for thread, slots in enumerate(row[role].places()):
            warp, g, q = thread // 32, thread % 32 // 4, thread % 4
            for i, place in enumerate(slots):
                step = 2 if role == "d" else per
                expected = 16 * warp + g + 8 * (i // step % 2), 4 * step * (i // step // 2) + step * q + i % step
                assert divmod(place, columns) == expected, (role, thread, i)


def cute_places(text, last):
    """(thread, value) -> offset of a printed layout."""
    layout = cute.parse(text)
    threads, values = (cute.size(layout[0]), cute.size(layout[1]))
    flat = layout(np.arange(threads * values)).reshape(values, threads).T
    return flat[: min(threads, last)].tolist()


@pytest.mark.parametrize("name", sorted(CUTE))
def test_fragments_equal_the_tables_that_cute_prints(name):
    row = atom(name)
    points = 0
    for role, text in CUTE[name].items():
        operand = row[role]
        if role == "row":  # lane -> the row that it supplies
            table = cute_places(text, 8 * operand.shape[0])
            mine = [operand.layout.at((j, r), operand.shape) for j in range(operand.shape[0]) for r in range(8)]
            assert [line[0] // 8 for line in table] == [dict(c.terms).get("lane", 0) for c in mine]
            points += len(mine)
            continue
        table = cute_places(text, operand.threads)
        rows, columns = operand.shape[0], operand.shape[-1]
        for thread, slots in enumerate(operand.places()):
            for i, place in enumerate(slots):
                column_major = row.family in ("mma", "wgmma")
                theirs = table[thread][i]
                assert (place // columns + rows * (place % columns) if column_major else place) == theirs
                points += 1
    assert points >= 8


def moved_formula(name):
    """tile, row, column of slot i in the words of the PTX ISA, for 8 x 8 tiles and for loads from tensor memory."""
    shape = name.split(".")[4] if name.startswith("tcgen05") else "transposed" if ".trans" in name else "tile"
    return {
        "tile": lambda lane, g, q, i: (i // 2, g, 2 * q + i % 2),
        "transposed": lambda lane, g, q, i: (i // 2, 2 * q + i % 2, g),
        "32x32b": lambda lane, g, q, i: (lane, i),
        "16x256b": lambda lane, g, q, i: (g + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * q + i % 2),
        "16x128b": lambda lane, g, q, i: (g + 8 * (i % 2), q + 4 * (i // 2)),
        "16x64b": lambda lane, g, q, i: (g + 8 * (q % 2), 2 * i + q // 2),
        "16x32bx2": lambda lane, g, q, i: (lane % 16, i + lane // 16 * registers_of(name)),
    }[shape]


def registers_of(name):
    return atom(name)["d"].elements


def test_moved_tiles_have_the_fragments_of_the_formulas():
    rows = [n for family in ("ldmatrix", "stmatrix", "movmatrix", "tcgen05.ld", "tcgen05.st") for n in names(family)]
    assert len(rows) == 13 + 2 * 37
    for name in rows:
        operand, formula = atom(name)["d"], moved_formula(name)
        for lane, slots in enumerate(operand.places()):
            for i, place in enumerate(slots):
                expected = np.ravel_multi_index(formula(lane, lane // 4, lane % 4, i), operand.shape)
                assert place == expected, (name, lane, i)


def test_every_row_has_ptxas_verdict_and_predicts_it():
    assert set(ACCEPTED) == set(names())
    for name, targets in ACCEPTED.items():
        assert [t for t in ptx_text.TARGETS if atom(name).runs_on(t)] == targets, name


def test_ptxas_agrees_with_the_recorded_verdicts():
    import shutil

    if shutil.which("ptxas") is None:
        pytest.skip("ptxas is not on PATH: its recorded verdicts are compared above")
    rows = list(names())
    for target in ("sm_80", "sm_90a"):
        assert ptx_text.accepted(rows, target) == [name for name in rows if target in ACCEPTED[name]]


def test_every_fragment_places_each_element_once():
    for name in names():
        for role, operand in atom(name).operands:
            if operand.space != "register" or operand.layout.replica or role == "row":
                continue
            places = [p for slots in operand.places() for p in slots if p >= 0]
            assert sorted(places) == list(range(operand.layout.size)), (name, role)


def scatter(operand, tile):
    flat = tile.reshape(-1)
    return np.array([[flat[p] for p in slots] for slots in operand.places()])


def test_ldmatrix_x4_is_the_a_fragment():
    a = atom("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")["a"]
    d = atom("ldmatrix.sync.aligned.m8n8.x4.shared.b16")["d"]
    values = np.arange(256).reshape(16, 16)
    tiles = values.reshape(2, 8, 2, 8).transpose(2, 0, 1, 3).reshape(4, 8, 8)  # j = m//8 + 2 (k//8)
    assert (scatter(a, values) == scatter(d, tiles)).all()


def test_ldmatrix_x2_and_its_transposed_form_are_the_b_fragment():
    b = atom("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")["b"]
    values = np.arange(128).reshape(8, 16)  # n, k
    tiles = values.reshape(8, 2, 8).transpose(1, 0, 2)
    assert (scatter(b, values) == scatter(atom("ldmatrix.sync.aligned.m8n8.x2.shared.b16")["d"], tiles)).all()
    rows_of_k = values.T.reshape(2, 8, 8)
    assert (scatter(b, values) == scatter(atom("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16")["d"], rows_of_k)).all()


def test_ldmatrix_x4_is_two_b_fragments():
    b = atom("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")["b"]
    values = np.arange(256).reshape(16, 16)  # n, k
    tiles = values.reshape(2, 8, 2, 8).transpose(0, 2, 1, 3).reshape(4, 8, 8)  # j = k//8 + 2 (n//8)
    loaded = scatter(atom("ldmatrix.sync.aligned.m8n8.x4.shared.b16")["d"], tiles)
    assert (loaded == np.hstack([scatter(b, values[:8]), scatter(b, values[8:])])).all()


def test_stmatrix_x4_stores_a_slab_of_a_warpgroup_accumulator():
    d = atom("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16")["d"]
    store = atom("stmatrix.sync.aligned.m8n8.x4.shared.b16")["d"]
    values = np.arange(64 * 64).reshape(64, 64)
    held = scatter(d, values)
    for warp in range(4):
        for slab in range(4):
            tile = values[16 * warp : 16 * warp + 16, 16 * slab : 16 * slab + 16]
            tiles = tile.reshape(2, 8, 2, 8).transpose(2, 0, 1, 3).reshape(4, 8, 8)  # j = m//8 + 2 (n%16//8)
            assert (scatter(store, tiles) == held[32 * warp : 32 * warp + 32, 8 * slab : 8 * slab + 8]).all()


def test_a_warpgroup_accumulator_of_sixteen_columns_is_its_a_operand():
    row = atom("wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16")
    assert same_map(row["d"].layout, row["a"].layout)
    narrow = atom("wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3")
    assert not same_map(narrow["d"].layout, narrow["a"].layout)


def test_an_accumulator_is_made_of_the_tiles_of_warp_products():
    d = atom("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16")["d"]
    c = atom("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")["c"]
    assert same_map(tile_of(d.layout, d.shape, c.layout, c.shape), parse("(4:1@warp, 16:1@reg)"))


def test_tensor_memory_holds_rows_on_lanes():
    for m, lane in ((64, lambda r: 32 * (r // 16) + r % 16), (128, lambda r: r)):
        d = tensor_d(m)
        for r in range(0, m, 7):
            place = dict(d.layout.at((r, 5), d.shape).terms)
            assert (place.get("TLane", 0), place["TCol"]) == (lane(r), 5)
    load = atom("tcgen05.ld.sync.aligned.16x256b.x1.b32")["d"]
    c = atom("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")["c"]
    assert same_map(load.layout, c.layout)


def test_products_mean_what_numpy_says():
    rng = np.random.default_rng(7)
    for name in names("mma"):
        row = atom(name)
        whole = row["c"].dtype == "s32"
        dtype = np.int32 if whole else np.float64 if row["c"].dtype == "f64" else np.float32
        tiles = {role: rng.integers(-3, 4, row[role].shape).astype(dtype) for role in "abc"}
        assert (row.emulate(tiles)["d"] == tiles["a"] @ tiles["b"].T + tiles["c"]).all()


def test_movements_keep_their_tile():
    for name in names():
        row = atom(name)
        if row.family in ("ldmatrix", "stmatrix", "movmatrix", "cp.async", "tcgen05.ld", "tcgen05.st", "vector"):
            (target, _), (source, _) = row.operands
            if row.family in ("ldmatrix", "cp.async") or target == "d":
                tile = np.arange(8)
                assert row.emulate({source: tile})[target] is tile


def test_rules_name_what_they_refuse():
    copy = atom("cp.async.ca.shared.global.8")
    assert refusals(copy, source=8, destination=4, source_bytes=9) == ("aligned", "source-bytes")
    assert refusals(copy, source=8, destination=16, source_bytes=3) == ()
    box = atom("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes")
    good = {"rank": 2, "base": 256, "dim": (100, 7), "stride": (208,), "box": (64, 8), "element_stride": (1, 1)}
    good |= {"bytes": 2, "swizzle": 128}
    assert refusals(box, **good) == ()
    for name, bad in {
        "rank": {"rank": 6, "dim": (1,) * 6, "stride": (16,) * 5, "box": (8,) * 6, "element_stride": (1,) * 6},
        "base-aligned": {"base": 8},
        "extent": {"dim": (100, 0)},
        "stride": {"stride": (200,)},
        "box": {"box": (8, 257)},
        "element-stride": {"element_stride": (1, 9)},
        "box-row": {"box": (4, 8)},
        "swizzle-row": {"box": (72, 8)},
    }.items():
        assert refusals(box, **(good | bad)) == (name,)
    assert refusals(atom("setmaxnreg.inc.sync.aligned.u32"), count=236) == ("registers",)


def test_unknown_instructions_are_refused_with_near_ones():
    with pytest.raises(BackendError, match=r"no instruction 'wgmma.*m64n12k16") as raised:
        atom("wgmma.mma_async.sync.aligned.m64n12k16.f32.f16.f16")
    assert "m64n128k16" in str(raised.value) or "m64n112k16" in str(raised.value)
    for name in ("mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32", "ldmatrix.sync.aligned.m8n8.x3.shared.b16", ""):
        with pytest.raises(BackendError):
            atom(name)


def test_the_table_needs_no_backend():
    import subprocess
    import sys

    found = "{n.split('.')[1] for n in sys.modules if n.startswith('tileweave.')}"
    code = f"import sys, tileweave.kernel.atoms; print(*sorted({found}))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    below = {"document", "draw", "errors", "index", "kept", "kernel", "layout", "space", "version"}
    assert set(out.stdout.split()) <= below
    assert len(families()) >= 15 and Condition("r", "x > 1").holds({"x": 2})
