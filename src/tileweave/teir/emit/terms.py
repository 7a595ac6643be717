"""What an emitter is given: operands of any layout under the letters of an equation, checked, in bytes per letter.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import ascii_letters

from tileweave.errors import GraphError, LayoutError, NoLayout
from tileweave.index.sizes import plain
from tileweave.layout import DEFAULT_AXIS, Coord, Iter, Layout, common_refinement, group, strided
from tileweave.layout.core.search import first_collision
from tileweave.teir.emit.schedule import LoopDim, Role
from tileweave.teir.ir.dtypes import width_bytes


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor as an emitter sees it.

    Args:
        layout: strides in elements on the axis ``m``; D has one iter per index, in the order of the letters, unless
            ``extents`` says how its iters belong together.
        dtype: FP64, FP32, BF16, FP16, INT64, INT32, INT16, INT8, UINT64, UINT32, UINT16, UINT8.
        extents: of the indices, slowest first, where the layout is blocked; None: those of D. `layout.group` decides
            whether D has such indices.

    Example:
        >>> from tileweave.layout import strided
        >>> blocked = Operand(strided((2, 4, 3, 8), (96, 8, 32, 1)), "FP32", (8, 24))  # 8 x 24 in blocks of 4 x 8
        >>> blocked.shape
        (8, 24)
    """

    layout: Layout
    dtype: str
    extents: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the indices."""
        return tuple(it.extent for it in self.layout.shard) if self.extents is None else self.extents

    @property
    def parts(self) -> tuple[int, ...]:
        """The extents of D: of the indices, or of what they are cut into."""
        return tuple(it.extent for it in self.layout.shard)

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides of D in elements."""
        return tuple(it.stride[DEFAULT_AXIS] for it in self.layout.shard)

    @property
    def strides_bytes(self) -> tuple[int, ...]:
        """The strides of D in bytes."""
        return tuple(stride * width_bytes(self.dtype) for stride in self.strides)

    @property
    def offset_bytes(self) -> int:
        """The offset O in bytes."""
        return self.layout.offset[DEFAULT_AXIS] * width_bytes(self.dtype)

    @property
    def leaves_memory(self) -> bool:
        """Whether its layout has another axis than ``m``."""
        layout = self.layout
        return any(axis != DEFAULT_AXIS for it in layout.shard for axis in it.stride.axes) or any(
            axis != DEFAULT_AXIS for axis in layout.offset.axes
        )

    @property
    def replicated(self) -> bool:
        """Whether an element has several places."""
        return bool(self.layout.replica)

    def __str__(self) -> str:
        indices = "" if self.extents is None else f" as {self.extents}"
        return f"{self.dtype} {self.layout}{indices}"


class StridedOperand(Operand):
    """An operand that lies as an array does: a stride per index, no offset. Its layout is made when it is asked for.

    Args:
        shape: positive extents.
        strides: in elements, of any sign.
        dtype: as of an `Operand`.
    """

    __slots__ = ("_shape", "_strides")
    _shape: tuple[int, ...]
    _strides: tuple[int, ...]

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> None:
        for name, value in (("_shape", shape), ("_strides", strides), ("dtype", dtype), ("extents", None)):
            object.__setattr__(self, name, value)

    @property
    def layout(self) -> Layout:
        """The layout, of one iter per index."""
        return strided(self._shape, self._strides)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the indices."""
        return self._shape

    parts = shape

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""
        return self._strides

    @property
    def offset_bytes(self) -> int:
        """None."""
        return 0

    @property
    def leaves_memory(self) -> bool:
        """No."""
        return False

    @property
    def replicated(self) -> bool:
        """No."""
        return False


Term = tuple[str, Operand]


def parse(where: str, equation: object, inputs: int) -> tuple[list[str], str]:
    """The letters of each input and of the output; or why the equation is none of so many inputs."""
    if not isinstance(equation, str):
        raise GraphError(where, f"{equation!r} is no equation", legal="letters, as in 'ab,bc->ac'")
    left, arrow, right = equation.replace(" ", "").partition("->")
    parts = left.split(",")
    if not arrow or len(parts) != inputs or not all(letter.isalpha() for letter in "".join([*parts, right])):
        count = min(inputs, 25)
        form = ",".join(ascii_letters[k : k + 2] for k in range(count)) + f"->{ascii_letters[count]}a"
        problem = f"{equation!r} is not an equation of {'1 operand' if inputs == 1 else f'{inputs} operands'}"
        raise GraphError(where, problem, legal=f"letters, as in {form!r}")
    if len(set(right)) != len(right):
        raise GraphError(where, f"the output {right!r} repeats a letter", legal="each letter once in the output")
    return parts, right


def extents_of(where: str, terms: Sequence[Term]) -> dict[str, int]:
    """The extent of every letter; or why the letters do not fit the operands."""
    extents: dict[str, int] = {}
    for letters, operand in terms:
        given: object = operand
        if not isinstance(given, Operand):
            problem = f"{type(given).__name__} is given as an operand"
            raise GraphError(where, problem, legal="Operand(layout, dtype), which names no values")
        if operand.leaves_memory:
            raise LayoutError(
                where, f"a layout leaves the memory axis {DEFAULT_AXIS}", inputs={"layout": operand.layout}
            )
        reach = sum([abs(stride) * (n - 1) for n, stride in zip(operand.parts, operand.strides, strict=True)])
        if (reach + 1) * width_bytes(operand.dtype) + abs(operand.offset_bytes) >= 1 << 63:
            problem = f"its elements lie {reach} apart, beyond addresses of 64 bits"
            raise LayoutError(where, problem, inputs={"layout": operand.layout})
        if len(letters) != len(operand.shape):
            raise GraphError(
                where, f"{letters!r} does not fit a shape of {len(operand.shape)} indices", inputs=shown(terms)
            )
        for letter, extent in zip(letters, operand.shape, strict=True):
            if extents.setdefault(letter, extent) != extent:
                problem = f"letter {letter!r} has extents {extents[letter]} and {extent}"
                raise GraphError(where, problem, inputs=shown(terms), legal="one extent per letter")
    return extents


def shown(terms: Sequence[Term]) -> dict[str, object]:
    """Operands with their letters, for messages."""
    return {f"{letters or '()'} ({k})": operand for k, (letters, operand) in enumerate(terms)}


def check_output(where: str, output: str, out: Operand) -> None:
    """Passes an output none of whose elements share a byte."""
    if out.replicated:
        raise LayoutError(where, "the output is replicated", inputs={"out": out}, legal="one place per element")
    if _nest(out.parts, out.strides):
        return
    collision = first_collision(list(map(plain, out.parts)), list(map(plain, out.strides)))
    if collision is not None:
        problem = f"elements of the output that are {collision} apart in ({','.join(output)}) share memory"
        raise LayoutError(where, problem, inputs={"out": out}, legal="strides that keep elements apart")


def _nest(extents: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether each stride passes over all that smaller ones reach, so that no two elements meet."""
    reach = 0
    for stride, n in sorted([(abs(stride), n) for stride, n in zip(strides, extents, strict=True) if n > 1]):
        if stride <= reach:
            return False
        reach += stride * (n - 1)
    return True


def letter_strides(letters: str, operand: Operand) -> dict[str, int]:
    """Bytes per letter; a repeated letter moves along all its indices at once."""
    if operand.extents is not None:
        where, legal = "letter_strides(letters, operand)", "emitters that refine their terms"
        raise LayoutError(
            where, "a blocked operand has no one stride per index", inputs={letters: operand}, legal=legal
        )
    strides: dict[str, int] = {}
    for letter, stride in zip(letters, operand.strides_bytes, strict=True):
        strides[letter] = strides.get(letter, 0) + stride
    return strides


def packed_strides(
    output: str, extents: dict[str, int], strides: dict[str, int], width: int
) -> tuple[dict[str, int], int]:
    """Strides without gaps in the order of the output's own, and the bytes that they cover."""
    packed, size = {}, width
    for letter in sorted(output, key=lambda c: abs(strides[c])):
        packed[letter] = size
        size *= extents[letter]
    return packed, size


def refined(where: str, terms: Sequence[Term]) -> list[Term]:
    """Terms of the same values in which every operand has one stride per letter: letters of blocked indices are cut.

    A letter is cut where the layout of any of its indices is, into as few as can be; the slowest part keeps its name.

    Args:
        where: for errors.
        terms: that fit each other.

    Raises:
        LayoutError: a layout has no such indices, or the blocks of two operands do not nest.

    Example:
        >>> from tileweave.layout import strided
        >>> blocked = Operand(strided((2, 4, 3, 8), (96, 8, 32, 1)), "FP32", (8, 24))
        >>> [(letters, operand.strides) for letters, operand in refined("f", [("ij", blocked), ("j", blocked)][:1])]
        [('iajb', (96, 8, 32, 1))]
    """
    if all(operand.extents is None for _, operand in terms):
        return list(terms)
    try:
        blocks = [group(Layout(operand.layout.shard), operand.shape) for _, operand in terms]
        used = dict.fromkeys(letter for letters, _ in terms for letter in letters)
        spare = (letter for letter in ascii_letters if letter not in used)
        factors: dict[str, tuple[int, ...]] = {}
        names: dict[str, str] = {}
        for letter in used:
            own = [
                Layout(block)
                for (letters, _), cut in zip(terms, blocks, strict=True)
                for index, block in zip(letters, cut, strict=True)
                if index == letter
            ]
            factors[letter] = common_refinement(*own)
            names[letter] = letter + "".join(next(spare) for _ in factors[letter][1:])
        result: list[Term] = []
        for (letters, operand), cut in zip(terms, blocks, strict=True):
            iters: list[Iter] = []
            for letter, block in zip(letters, cut, strict=True):
                parts = group(Layout(block), factors[letter])
                extents = factors[letter] or (1,)
                parts = parts or ((),)
                iters += [part[0] if part else Iter(n, Coord()) for part, n in zip(parts, extents, strict=True)]
            layout = Layout(tuple(iters), operand.layout.replica, operand.layout.offset)
            result.append(("".join(names[letter] for letter in letters), Operand(layout, operand.dtype)))
    except NoLayout as error:
        problem = f"the operands' blocks do not fit each other: {error.problem.split(': ')[-1]}"
        raise LayoutError(where, problem, inputs=shown(terms), legal="blocks that nest") from None
    return result


def dims_of(
    extents: dict[str, int], strides: Sequence[dict[str, int]], role: Callable[[str], Role]
) -> tuple[LoopDim, ...]:
    """One dim per letter of more than one step."""
    return tuple(
        LoopDim(letter, extent, tuple(s.get(letter, 0) for s in strides), role(letter))
        for letter, extent in extents.items()
        if extent > 1
    )
