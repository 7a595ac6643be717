"""``stmatrix``: a fragment of a product's result goes to shared memory by rows of 16 bytes."""

from __future__ import annotations

from tileweave.index import ExprLike, simplify
from tileweave.kernel.atoms import atom
from tileweave.kernel.dispatch.layouts import places
from tileweave.kernel.dispatch.layouts.registers import Digit, Holding
from tileweave.kernel.ir import Region
from tileweave.kernel.threads import LANE

__all__ = ["STORE", "store_problem", "store_row"]

STORE = "stmatrix.sync.aligned.m8n8.x4.shared.b16"
#: The digits of an 8 x 8 tile over the lanes, and of its two halves over the slots.
_TILE = {Digit("lane", 4, 8, 0, 1), Digit("lane", 1, 4, 1, 2), Digit("reg", 1, 2, 1, 1), Digit("reg", 2, 2, 0, 8)}


def store_problem(held: Holding, out: Region, arch: str) -> str:
    """Why registers are not stored by ``stmatrix``; empty if they are."""
    if out.tensor.space != "shared":
        return "not to shared memory"
    if out.tensor.element.bits != 16:
        return f"elements of {out.tensor.element.bits} bits"
    if not atom(STORE).runs_on(arch):
        return f"needs sm_90, not {arch}"
    if len(held.shape) != 2 or not set(held.digits) >= _TILE or any(d.dim < 0 for d in held.digits):
        return "the registers are no fragments of 8 x 8 tiles"
    pairs = [d for d in held.digits if d.axis == "reg" and d.stride == 4]
    if not pairs or pairs[0].dim != 1 or pairs[0].weight != 8 or pairs[0].extent % 2:
        return "neighbouring slots are no neighbouring tiles"
    if out.masked or out.shape != held.shape:
        return "a mask"
    if places.fastest(out) != 1 or places.vector(out, 8) != 8:
        return "rows of fewer than 16 aligned bytes"
    return ""


def store_row(held: Holding, warp: ExprLike, first: ExprLike) -> tuple[ExprLike, ExprLike]:
    """The coordinates of the row that a lane supplies for the four tiles of slots ``first .. first + 7``."""
    row, column = held.coordinates(warp, 0, first)
    return simplify(row + LANE // 8 % 2 * 8 + LANE % 8), simplify(column + LANE // 16 * 8)
