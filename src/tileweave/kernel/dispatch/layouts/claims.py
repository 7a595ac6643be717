"""Where instructions go and where their tensors' layouts say that they should: every address, box and descriptor.

Dispatch notes with each address which element of which tensor it is of. Here both are computed, for all lanes and for
values of the loops' symbols, and compared: a row of `ldmatrix`, a box of a tensor map and a descriptor of `wgmma` or
`tcgen05.mma` as the hardware reads them, element by element. A difference is named by a rule and the kernel's line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from tileweave.errors import VerifyError
from tileweave.index import Expr, bounds, evaluate, symbols_of
from tileweave.kernel.atoms import atom
from tileweave.kernel.atoms.mma import SCALE_COPY, SCALED
from tileweave.kernel.dispatch.layouts import places
from tileweave.kernel.ir import DTYPES, KernelTensor
from tileweave.kernel.threads import (
    Address,
    Buffer,
    ClaimedElement,
    Instruction,
    Slots,
    SourceLine,
    TensorBox,
    ThreadProgram,
    instructions,
)

Array = np.ndarray[Any, Any]
_SAMPLES, _FREE = 6, 1000
#: A code of a descriptor -> the width of its swizzle in bytes: of `wgmma`, and of `tcgen05.mma`.
_WIDTHS, _WIDTHS_100 = {0: 0, 1: 128, 2: 64, 3: 32}, {0: 0, 2: 128, 4: 64, 6: 32}


@dataclass(frozen=True, slots=True)
class Broken:
    """A claim that does not hold.

    Args:
        rule: ``address``, ``row``, ``box``, ``swizzle`` or ``descriptor``.
        text: what the instruction does, and what the layout says.
        at: the kernel's line.
    """

    rule: str
    text: str
    at: SourceLine | None

    def __str__(self) -> str:
        return f"{self.at}: {self.rule}: {self.text}"


def verify_claims(program: ThreadProgram) -> None:
    """Nothing, if every instruction goes where the layouts of its tensors say.

    Raises:
        VerifyError: the first that does not; ``error.rule`` names the rule, and the error has the kernel's line.
    """
    for broken in claims(program):
        raise VerifyError(
            f"{program.name}.run(.., check=True)", broken.text,
            inputs={"rule": broken.rule, "line": str(broken.at)}, legal="what the layout of the tensor says",
            facts={"rule": broken.rule, "path": "", "line": broken.at},
        )  # fmt: skip


def claims(program: ThreadProgram) -> Iterator[Broken]:
    """What does not hold, in the order of the program."""
    random, maps = Random(0), dict(program.maps)
    for item in instructions(program.body):
        values = _values(item, random)
        for look in (_addresses, _rows, _boxes, _descriptors):
            for rule, text in look(item, values, maps):
                yield Broken(rule, f"{item.atom.split('.')[0]} {text}", item.at)


Values = Mapping[str, Array]
Found = Iterator[tuple[str, str]]


def _values(item: Instruction, random: Random) -> Values:
    """Some values of the symbols of an instruction, each with all 32 lanes."""
    found: dict[str, Array] = {"lane": np.tile(np.arange(32), _SAMPLES)}
    for symbol in sorted(_symbols(item), key=str):
        _draw(symbol, found, random)
    return found


def _draw(symbol: Expr, found: dict[str, Array], random: Random) -> None:
    """Values of a symbol within its range, the least two and the greatest among them; first of those that bound it."""
    if str(symbol) in found:
        return
    _, start, stop, factor = symbol.args
    ends = [bound if isinstance(bound, Expr) else None for bound in (start, stop)]
    for bound in ends:
        for other in symbols_of(bound) if bound is not None else ():
            _draw(other, found, random)
    low, high = (None if bound is None else np.broadcast_to(_number(bound, found), 32 * _SAMPLES) for bound in ends)
    step = bounds(factor)[0] or 1 if isinstance(factor, Expr) else 1
    drawn = []
    for k in range(0, 32 * _SAMPLES, 32):
        # the warps of a part are counted from its first: for others, whose numbers are negative, there is a branch
        least = -(-max(int(low[k]) if low is not None else 0, 0) // step)
        most = max(least, (int(high[k]) - 1) // step if high is not None else least + _FREE)
        fixed = (least, most, min(least + 1, most))  # neighbours differ in every stage of a ring
        drawn.append(step * (fixed[k // 32] if k < 96 else random.randint(least, most)))
    found[str(symbol)] = np.repeat(drawn, 32)


def _symbols(value: object) -> set[Expr]:
    if isinstance(value, Expr):
        return set(symbols_of(value))
    if isinstance(value, tuple | list):
        return set().union(*map(_symbols, value))
    if isinstance(value, Instruction):
        return _symbols((value.operands, value.options))
    if isinstance(value, Address):
        return _symbols((value.offset, value.element.at if value.element is not None else ()))
    return _symbols(value.first) if isinstance(value, Slots) else set()


def _number(value: Any, values: Values) -> Any:
    """A number, or its values for all lanes and samples."""
    if not isinstance(value, Expr):
        return value
    names = {str(s): values[str(s)] for s in symbols_of(value)}
    return np.asarray(evaluate(value, names))


def _at(element: ClaimedElement, values: Values) -> list[Any]:
    return [_number(one, values) for one in element.at]


def _first(wrong: Any, values: Values) -> str:
    """Where a comparison fails first: the lane, and the symbols."""
    k = int(np.flatnonzero(np.broadcast_to(wrong, values["lane"].shape))[0])
    return ", ".join(f"{name} {int(row[k])}" for name, row in values.items())


def _addresses(item: Instruction, values: Values, maps: Mapping[str, TensorBox]) -> Found:
    """The address of an element is where its layout puts it."""
    for operand in item.operands:
        if isinstance(operand, Address) and operand.element is not None:
            tensor, at = operand.element.tensor, _at(operand.element, values)
            where, should = _number(operand.offset, values), places.offset(tensor, at)
            wrong = np.asarray(where != should)
            if wrong.any():
                what = f"goes to another element than {_named(operand.element)} ({_first(wrong, values)})"
                yield "row" if "matrix" in item.atom else "address", what


def _named(element: ClaimedElement) -> str:
    return f"{element.tensor.name}[{', '.join(map(str, element.at))}]"


def _rows(item: Instruction, values: Values, maps: Mapping[str, TensorBox]) -> Found:
    """A row of 8 x 8 tiles is 16 aligned bytes: eight neighbours along the dimension of stride 1."""
    if not item.atom.startswith(("ldmatrix", "stmatrix")):
        return
    for operand in item.operands:
        if isinstance(operand, Address) and operand.element is not None:
            tensor, at = operand.element.tensor, _at(operand.element, values)
            start = _number(operand.offset, values)
            fast = _fastest(tensor)
            for k in range(8):
                moved = [c + k if d == fast else c for d, c in enumerate(at)]
                wrong = np.asarray(places.offset(tensor, moved) != start + k)
                if wrong.any():
                    yield "row", f"reads beside {_named(operand.element)}: its row is no 16 bytes in one piece"
                    break


def _fastest(tensor: KernelTensor) -> int:
    rows = places.rows_of(tensor)
    return next((d for d, row in enumerate(rows) if row and row[-1][1] == 1), tensor.rank - 1)


def _boxes(item: Instruction, values: Values, maps: Mapping[str, TensorBox]) -> Found:
    """A box of a tensor map has the extents and the place of its part of the region, and lies as the tile's layout."""
    cover = item.option("cover")
    if cover is None:
        return
    map_ = next(o for o in item.operands if isinstance(o, Buffer) and o.space == "map")
    near = next(o for o in item.operands if isinstance(o, Address))
    box, (dims, begin) = maps[map_.name], cover
    extents = [1] * len(begin)
    for _, far, extent in dims:
        extents[far] = extent
    if tuple(extents) != box.box:
        yield "box", f"moves boxes of {box.box} where the region has {tuple(extents)}"
        return
    coordinates = item.operands[-len(begin) :]
    for k, (have, want) in enumerate(zip(reversed(coordinates), begin, strict=True)):
        if (np.asarray(_number(have, values)) != np.asarray(_number(want, values))).any():
            yield "box", f"begins at {have} in dimension {k} of {box.tensor}, where the region begins at {want}"
            return
    if near.element is None:
        return
    tensor, bytes_ = near.element.tensor, near.element.tensor.element.bits // 8
    swizzled = near.element.whole or tensor
    order = np.stack(np.meshgrid(*(np.arange(e) for e in extents), indexing="ij"), -1).reshape(-1, len(extents))
    inside = np.arange(len(order)) * bytes_
    for sample in range(0, 32 * _SAMPLES, 32):
        at = [int(np.broadcast_to(c, 32 * _SAMPLES)[sample]) for c in _at(near.element, values)]
        start = int(np.broadcast_to(_number(near.offset, values), 32 * _SAMPLES)[sample]) * bytes_
        moved: list[Any] = [np.full(len(order), c) for c in at]
        for dim, far, _ in dims:
            moved[dim] = moved[dim] + order[:, far]
        if (_swizzled(start + inside, box.swizzle) != places.offset(swizzled, moved) * bytes_).any():
            yield "swizzle", f"writes {tensor.name} in another order than its layout: a swizzle of {box.swizzle} bytes"
            return


def _swizzled(address: Array, width: int) -> Array:
    """What the hardware makes of byte addresses: chunks of 16 bytes exchanged within 128-byte lines."""
    return address ^ ((address >> 7 & (width // 16 - 1)) << 4) if width else address


def _descriptors(item: Instruction, values: Values, maps: Mapping[str, TensorBox]) -> Found:
    """A descriptor finds element (mn, k) of its tile where the tensor's layout puts it."""
    if item.atom.startswith("wgmma.mma_async"):
        row = atom(item.atom)
        majors = item.option("transposed", (False, False))
        for k, role in enumerate("ab"):
            yield from _descriptor(item, role, item.operands[k + 1], row[role].shape, majors[k], _WIDTHS, values)
    elif item.atom == SCALE_COPY:
        source, dims = item.operands[1], item.option("dims")
        yield from _scales(source, dims, values)
    elif item.atom.startswith("tcgen05.mma"):
        number = item.operands[3]
        scaled = item.atom == SCALED
        decoded, declared = (_decoded_scaled if scaled else _decoded)(number), dict(item.option("declared"))
        wrong = [f"{name} {decoded[name]}, not {want}" for name, want in declared.items() if decoded[name] != want]
        if wrong:
            yield "descriptor", f"of the instruction, 0x{number:08x}, says {', '.join(wrong)}"
            return
        blocks = 2 if "cta_group::2" in item.atom else 1
        for k, role in enumerate("ab"):
            shape = (declared["mn"[k]] // blocks, 256 // _bits(item.atom))
            turned = bool(decoded.get(f"{role} transposed"))
            yield from _descriptor(item, role, item.operands[k + 1], shape, turned, _WIDTHS_100, values)


def _bits(name: str) -> int:
    """Bits of an element of A and B of a ``tcgen05.mma``."""
    return DTYPES[atom(name)["a"].dtype].bits


def _decoded(number: int) -> dict[str, int]:
    """The fields of the instruction descriptor of ``tcgen05.mma`` (PTX ISA, table of instruction descriptors)."""
    fields = {"d": (4, 3), "a": (7, 7), "b": (10, 7), "a transposed": (15, 1), "b transposed": (16, 1)}
    found = {name: number >> at & mask for name, (at, mask) in fields.items()}
    return {**found, "n": 8 * (number >> 17 & 63), "m": 16 * (number >> 24 & 31)}


def _decoded_scaled(number: int) -> dict[str, int]:
    """The same of a product with scales; `others`: what is 0, but for which byte of each cell is A's and B's."""
    fields = {"a": (7, 7), "b": (10, 7), "e8m0": (23, 1)}
    found = {name: number >> at & mask for name, (at, mask) in fields.items()}
    apart = (number >> 29 & 3) != (number >> 4 & 3)
    others = number & ~(7 << 7 | 7 << 10 | 63 << 17 | 1 << 23 | 3 << 27 | 3 << 29 | 3 << 4)
    return {**found, "n": 8 * (number >> 17 & 63), "m": 128 * (number >> 27 & 3), "others": others + apart}


def _scales(source: Any, dims: tuple[int, int], values: Values) -> Found:
    """Byte ``16 i + j`` behind an address is the scale of row ``i + 32 (j // 4)`` and column ``j % 4``."""
    tensor, at = source.element.whole, _at(source.element, values)
    i, j = (n.reshape(-1) for n in np.indices((32, 16)))
    for sample in range(0, 32 * _SAMPLES, 32):
        moved: list[Any] = [np.full(i.shape, int(np.broadcast_to(c, 32 * _SAMPLES)[sample])) for c in at]
        moved[dims[0]], moved[dims[1]] = moved[dims[0]] + i + 32 * (j // 4), moved[dims[1]] + j % 4
        start = int(np.broadcast_to(_number(source.offset, values), 32 * _SAMPLES)[sample])
        if (start + 16 * i + j != places.offset(tensor, moved)).any():
            yield "descriptor", f"of scales finds others than the layout of {tensor.name} has there"
            return


def _descriptor(
    item: Instruction, role: str, operand: Any, shape: tuple[int, ...], turned: bool, widths: dict[int, int],
    values: Values,
) -> Found:  # fmt: skip
    """One operand of a product in shared memory."""
    if not isinstance(operand, Address) or operand.element is None or operand.element.whole is None:
        return
    lbo, sbo, code = item.option(role)
    tensor = operand.element.whole
    bytes_ = tensor.element.bits // 8
    if code not in widths:
        yield "descriptor", f"of {role.upper()} has swizzle {code}, which is none"
        return
    width = widths[code]
    offset = _canonical(turned, width, bytes_, lbo, sbo)
    mn, k = (n.reshape(-1) for n in np.indices(shape))
    dims = item.option(f"{role}_dims")
    for sample in range(0, 32 * _SAMPLES, 32):
        at = [int(np.broadcast_to(c, 32 * _SAMPLES)[sample]) for c in _at(operand.element, values)]
        start = int(np.broadcast_to(_number(operand.offset, values), 32 * _SAMPLES)[sample]) * bytes_
        moved: list[Any] = [np.full(mn.shape, c) for c in at]
        for dim, more in zip(dims, (mn, k), strict=True):
            moved[dim] = moved[dim] + more
        wrong = _swizzled(start + offset(mn, k), width) != places.offset(tensor, moved) * bytes_
        if wrong.any():
            x = int(np.flatnonzero(wrong)[0])
            yield (
                "descriptor",
                f"finds element ({mn[x]}, {k[x]}) of {role.upper()} elsewhere than the layout of {tensor.name}: "
                f"offsets {lbo} and {sbo}, swizzle {width}{', transposed' * bool(turned)}",
            )
            return


def _canonical(turned: bool, width: int, bytes_: int, lbo: int, sbo: int) -> Callable[[Array, Array], Array]:
    """The byte offset of element (mn, k) behind a descriptor, before the swizzle (PTX ISA, matrix descriptors)."""
    chunk, w = 16 // bytes_, max(1, width // bytes_)
    if not turned:
        if width:
            return lambda mn, k: mn % 8 * width + mn // 8 * sbo + k * bytes_
        return lambda mn, k: mn % 8 * 16 + mn // 8 * sbo + k % chunk * bytes_ + k // chunk * lbo
    if width:
        return lambda mn, k: mn % w * bytes_ + mn // w * lbo + k % 8 * width + k // 8 * sbo
    return lambda mn, k: mn % chunk * bytes_ + mn // chunk * sbo + k % 8 * 16 + k // 8 * lbo
