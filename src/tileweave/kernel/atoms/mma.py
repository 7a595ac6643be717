"""Products of matrices: ``mma.sync`` of a warp, ``wgmma`` of a warpgroup, ``tcgen05.mma`` of one thread.

A is (m, k), B is (n, k) because ``.col`` B runs along k, C and D are (m, n).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tileweave.kernel.atoms.atom import BITS, Atom, Condition, Cost, Fragment, fragment, shared
from tileweave.layout import parse

Array = np.ndarray[Any, Any]

_WARP_C = "(2:2@reg, 8:4@lane, 4:1@lane, 2:1@reg)"
#: (shape, bits of an input) -> layout of A, layout of B.
_WARP_AB = {
    ("m16n8k8", 16): ("(2:2@reg, 8:4@lane, 4:1@lane, 2:1@reg)", "(8:4@lane, 4:1@lane, 2:1@reg)"),
    ("m16n8k16", 16): ("(2:2@reg, 8:4@lane, 2:4@reg, 4:1@lane, 2:1@reg)", "(8:4@lane, 2:2@reg, 4:1@lane, 2:1@reg)"),
    ("m16n8k4", 32): ("(2:1@reg, 8:4@lane, 4:1@lane)", "(8:4@lane, 4:1@lane)"),
    ("m16n8k8", 32): ("(2:1@reg, 8:4@lane, 2:2@reg, 4:1@lane)", "(8:4@lane, 2:1@reg, 4:1@lane)"),
    ("m16n8k16", 8): ("(2:4@reg, 8:4@lane, 4:1@lane, 4:1@reg)", "(8:4@lane, 4:1@lane, 4:1@reg)"),
    ("m16n8k32", 8): ("(2:4@reg, 8:4@lane, 2:8@reg, 4:1@lane, 4:1@reg)", "(8:4@lane, 2:4@reg, 4:1@lane, 4:1@reg)"),
    ("m16n8k32", 4): ("(2:8@reg, 8:4@lane, 4:1@lane, 8:1@reg)", "(8:4@lane, 4:1@lane, 8:1@reg)"),
    ("m16n8k64", 4): ("(2:8@reg, 8:4@lane, 2:16@reg, 4:1@lane, 8:1@reg)", "(8:4@lane, 2:8@reg, 4:1@lane, 8:1@reg)"),
    ("m8n8k4", 64): ("(8:4@lane, 4:1@lane)", "(8:4@lane, 4:1@lane)"),
}
_INTEGERS = (("s8", "s8"), ("s8", "u8"), ("u8", "s8"), ("u8", "u8"))
_NIBBLES = (("s4", "s4"), ("s4", "u4"), ("u4", "s4"), ("u4", "u4"))
_FP8 = (("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"), ("e5m2", "e5m2"))
#: (shape, types of D and C, pairs of types of A and B, first target).
_WARP_ROWS: tuple[tuple[str, str, tuple[tuple[str, str], ...], str], ...] = (
    ("m16n8k8", "f16", (("f16", "f16"),), "sm_75"),
    ("m16n8k8", "f32", (("f16", "f16"),), "sm_75"),
    ("m16n8k8", "f32", (("bf16", "bf16"), ("tf32", "tf32")), "sm_80"),
    ("m16n8k4", "f32", (("tf32", "tf32"),), "sm_80"),
    ("m16n8k16", "f16", (("f16", "f16"),), "sm_80"),
    ("m16n8k16", "f32", (("f16", "f16"), ("bf16", "bf16")), "sm_80"),
    ("m16n8k16", "s32", _INTEGERS, "sm_80"),
    ("m16n8k32", "s32", _INTEGERS + _NIBBLES, "sm_80"),
    ("m16n8k64", "s32", _NIBBLES, "sm_80"),
    ("m16n8k16", "f32", _FP8, "sm_89"),
    ("m16n8k32", "f32", _FP8, "sm_89"),
    ("m16n8k16", "f16", _FP8, "sm_89"),
    ("m16n8k32", "f16", _FP8, "sm_89"),
    ("m8n8k4", "f64", (("f64", "f64"),), "sm_80"),
)


def product(tiles: Mapping[str, Array]) -> dict[str, Array]:
    """D = A B^T + C: exact products, one sum in the widest type, rounded once to C's type."""
    a, b, c = tiles["a"], tiles["b"], tiles["c"]
    wide = np.int64 if np.issubdtype(c.dtype, np.integer) else np.float64
    return {"d": (a.astype(wide) @ b.astype(wide).T + c.astype(wide)).astype(c.dtype)}


def _extents(shape: str) -> tuple[int, int, int]:
    m, rest = shape[1:].split("n")
    n, k = rest.split("k")
    return int(m), int(n), int(k)


def mma_names() -> Iterator[str]:
    """Every ``mma.sync`` of the table."""
    for shape, accumulator, pairs, _ in _WARP_ROWS:
        for a, b in pairs:
            yield f"mma.sync.aligned.{shape}.row.col.{accumulator}.{a}.{b}.{accumulator}"


def mma_atom(name: str) -> Atom | None:
    """The row of a ``mma.sync``, or None; ``.satfinite`` of integers saturates the sum."""
    parts = name.replace(".satfinite", "").split(".")
    if parts[:3] != ["mma", "sync", "aligned"] or len(parts) != 10 or parts[4:6] != ["row", "col"]:
        return None
    shape, (d, a, b, c) = parts[3], parts[6:]
    first = next(
        (first for row, acc, pairs, first in _WARP_ROWS if row == shape and acc == d == c and (a, b) in pairs), ""
    )
    if not first:
        return None
    m, n, k = _extents(shape)
    text_a, text_b = _WARP_AB[shape, BITS[a]]
    result = fragment(d, (m, n), "(8:4@lane, 4:1@lane, 2:1@reg)" if m == 8 else _WARP_C)
    operands = (("d", result), ("a", fragment(a, (m, k), text_a)), ("b", fragment(b, (n, k), text_b)), ("c", result))
    return Atom(name, "mma", (first,), operands, emulate=product, cost=Cost(operations=2 * m * n * k))


# wgmma: (types of D, types of A and B); integers have fewer widths.
_GROUP_ROWS = (
    ("f16", (("f16", "f16"),)),
    ("f32", (("f16", "f16"), ("bf16", "bf16"), ("tf32", "tf32"))),
    ("f16", _FP8),
    ("f32", _FP8),
    ("s32", _INTEGERS),
)
_GROUP_A = {
    16: "(4:1@warp, 2:2@reg, 8:4@lane, 2:4@reg, 4:1@lane, 2:1@reg)",
    32: "(4:1@warp, 2:1@reg, 8:4@lane, 2:2@reg, 4:1@lane)",
    8: "(4:1@warp, 2:4@reg, 8:4@lane, 2:8@reg, 4:1@lane, 4:1@reg)",
}
_GROUP_RULES = (
    Condition("descriptor-aligned", "address % 16 == 0"),
    Condition("k-major", "transposed == 0 or bits == 16"),
    Condition("no-base-offset", "base_offset == 0"),
)


def wgmma_widths(accumulator: str) -> tuple[int, ...]:
    """The legal N of a ``wgmma`` with this accumulator."""
    if accumulator == "s32":
        return (8, 16, 24, 32, *range(48, 257, 16))
    return tuple(range(8, 257, 8))


def wgmma_names() -> Iterator[str]:
    """Every ``wgmma`` of the table."""
    for accumulator, pairs in _GROUP_ROWS:
        for a, b in pairs:
            for n in wgmma_widths(accumulator):
                yield f"wgmma.mma_async.sync.aligned.m64n{n}k{256 // BITS[a]}.{accumulator}.{a}.{b}"


def wgmma_accumulator(dtype: str, n: int) -> Fragment:
    """The accumulator of a ``wgmma`` of width N, over the four warps of a warpgroup."""
    return fragment(dtype, (64, n), f"(4:1@warp, 2:2@reg, 8:4@lane, {n // 8}:4@reg, 4:1@lane, 2:1@reg)")


def wgmma_atom(name: str) -> Atom | None:
    """The row of a ``wgmma``, or None. A's operand is its form in registers; from shared memory it lies as B does."""
    parts = name.split(".")
    if parts[:4] != ["wgmma", "mma_async", "sync", "aligned"] or len(parts) != 8:
        return None
    shape, d, a, b = parts[4:]
    if not any(d == accumulator and (a, b) in pairs for accumulator, pairs in _GROUP_ROWS):
        return None
    try:
        m, n, k = _extents(shape)
    except ValueError:
        return None
    if m != 64 or k * BITS[a] != 256 or n not in wgmma_widths(d):
        return None
    result = wgmma_accumulator(d, n)
    operands = (
        ("d", result),
        ("a", fragment(a, (m, k), _GROUP_A[BITS[a]])),
        ("b", shared(b, (n, k), f"({n}:{k}, {k}:1)")),
    )
    return Atom(
        name, "wgmma", ("sm_90a",), operands, _GROUP_RULES, emulate=product, cost=Cost(operations=2 * m * n * k)
    )


_TENSOR_KINDS = {"f16": 16, "tf32": 32, "f8f6f4": 8, "i8": 8}
#: Factors of FP8 with a scale for every 32 terms of a row, which lie in tensor memory; and the copy of 128 x 4 scales.
SCALED = "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X"
SCALE_COPY = "tcgen05.cp.cta_group::1.32x128b.warpx4"
#: ptxas refuses kind::i8 for sm_103a; the others it takes.
_TENSOR_TARGETS = {"f16": ("sm_100a", "sm_103a"), "tf32": ("sm_100a", "sm_103a"), "f8f6f4": ("sm_100a", "sm_103a")}
_TENSOR_D = {64: "(4:32@TLane, 16:1@TLane, 256:1@TCol)", 128: "(128:1@TLane, 256:1@TCol)"}


def tcgen05_names() -> Iterator[str]:
    """Every ``tcgen05.mma`` of the table: one block or a pair, A in shared or, with ``.tensor_a``, in tensor memory."""
    for group in (1, 2):
        for kind in _TENSOR_KINDS:
            yield f"tcgen05.mma.cta_group::{group}.kind::{kind}"
            yield f"tcgen05.mma.cta_group::{group}.kind::{kind}.tensor_a"


def tcgen05_atom(name: str) -> Atom | None:
    """The row of a ``tcgen05.mma`` with D of 128 rows and 256 columns, the largest tile; M = 64 is :func:`tensor_d`."""
    if name not in tcgen05_names():
        return None
    kind, _, place = name.rsplit("::", 1)[1].partition(".")
    bits = _TENSOR_KINDS[kind]
    dtype = {16: "f16", 32: "tf32", 8: "s8" if kind == "i8" else "e4m3"}[bits]
    k = 256 // bits
    operands = (
        ("d", tensor_d(128)),
        (
            "a",
            Fragment(dtype, (128, k), parse(f"(128:1@TLane, {k}:1@TCol)"), "tensor")
            if place
            else shared(dtype, (128, k), f"(128:{k}, {k}:1)"),
        ),
        ("b", shared(dtype, (256, k), f"(256:{k}, {k}:1)")),
    )
    rules = (
        Condition("rows", "m == 64 or m == 128"),
        Condition("columns", "n >= 8 and n <= 256 and n % (16 if m == 128 else 8) == 0"),
    )
    targets = _TENSOR_TARGETS.get(kind, ("sm_100a",))
    return Atom(name, "tcgen05.mma", targets, operands, rules, emulate=product, cost=Cost(2 * 128 * 256 * k))


def scaled_names() -> Iterator[str]:
    """The ``tcgen05.mma`` with scales, and the ``tcgen05.cp`` that brings them to tensor memory."""
    yield SCALED
    yield SCALE_COPY


def scaled_atom(name: str) -> Atom | None:
    """The rows of products with scales.

    Four scales of 128 rows lie in a lane for every 32nd row, in 16 bytes: a cell for each 32 rows, a byte for each 32
    terms. All four warps' lanes hold them.
    """
    if name not in (SCALED, SCALE_COPY):
        return None
    cells = Fragment("e8m0", (128, 4), parse("(4:4@TCol, 32:1@TLane, 4:1@TCol) + [4:32@TLane]"), "tensor")
    if name == SCALE_COPY:
        source = shared("e8m0", (128, 4), "(4:4, 32:16, 4:1)")
        return Atom(
            name, "tcgen05.cp", _TENSOR_TARGETS["f16"], (("t", cells), ("s", source)),
            (Condition("aligned", "address % 16 == 0"),), lambda tiles: {"t": tiles["s"]}, Cost(bytes_moved=512),
        )  # fmt: skip
    operands = (
        ("d", tensor_d(128)),
        ("a", shared("e4m3", (128, 32), "(128:32, 32:1)")),
        ("b", shared("e4m3", (256, 32), "(256:32, 32:1)")),
        ("scale_a", cells),
        ("scale_b", cells),
    )
    rules = (Condition("rows", "m == 128"), Condition("columns", "n >= 8 and n <= 256 and n % 8 == 0"))
    return Atom(name, "tcgen05.mma", _TENSOR_TARGETS["f16"], operands, rules, cost=Cost(2 * 128 * 256 * 32))


def tensor_d(m: int) -> Fragment:
    """The accumulator of ``tcgen05.mma`` in tensor memory, 64 or 128 rows by 256 columns."""
    return Fragment("f32", (m, 256), parse(_TENSOR_D[m]), "tensor")
