"""The TEIR programs of operations, emitted for the layouts of their operands.

How a program is emitted from extents and strides is recorded when its kind comes for the second time
(`tileweave.index.sizes`): every decision that the emitters take, and every size that they make. For other
operands the decisions are taken again, in some hundredths of a millisecond, and where they fall as they did the program
is the recorded one with other sizes.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tileweave.graph import Operation, TensorType
from tileweave.index.sizes import FollowedNumber, Sizes, Table, Word
from tileweave.kept import keep_last
from tileweave.lower.programs import (
    MONOIDS,
    PLACES,
    RUNNING,
    ProgramKind,
    factors_of,
    key_letter,
    lowering,
    program_kind,
    result_of,
)
from tileweave.teir import (
    Operand,
    Program,
    StridedOperand,
    dtype_name,
    emit_attention,
    emit_chain,
    emit_contraction,
    emit_contraction_in_pieces,
    emit_copy,
    emit_place,
    emit_reduction,
    emit_running,
)
from tileweave.teir.emit.compose import sequence
from tileweave.teir.ir.form import numbers_of
from tileweave.teir.ir.program import Axis, Primitive, TensorSpec

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class OperandView:
    """An array without its elements: what a program is emitted for.

    Args:
        dtype: of the elements.
        shape: extents.
        strides: bytes between neighbours along each dimension.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, array: Array) -> OperandView:
        """An array's."""
        return cls(array.dtype, array.shape, array.strides)

    @classmethod
    def dense(cls, kind: TensorType) -> OperandView:
        """A tensor's in row-major order."""
        strides, step = [0] * len(kind.shape), kind.dtype.itemsize
        for k in reversed(range(len(kind.shape))):
            strides[k], step = step, step * kind.shape[k]
        return cls(kind.dtype, kind.shape, tuple(strides))

    def spread(self, shape: tuple[int, ...]) -> OperandView:
        """The view broadcast to a shape."""
        missing = len(shape) - len(self.shape)
        kept = (0 if n == 1 else stride for n, stride in zip(self.shape, self.strides, strict=True))
        return OperandView(self.dtype, shape, (*(0,) * missing, *kept))

    def without(self, axes: Sequence[int]) -> OperandView:
        """The view at the first index of some dimensions."""
        kept = [k for k in range(len(self.shape)) if k not in axes]
        return OperandView(self.dtype, tuple(self.shape[k] for k in kept), tuple(self.strides[k] for k in kept))

    def divided(self, axis: int, inner: int) -> OperandView:
        """One dimension as two, the second of extent `inner`."""
        shape, strides = list(self.shape), list(self.strides)
        shape[axis : axis + 1] = [shape[axis] // inner, inner]
        strides[axis : axis + 1] = [strides[axis] * inner, strides[axis]]
        return OperandView(self.dtype, tuple(shape), tuple(strides))

    def cut(self, factors: Sequence[int]) -> OperandView:
        """Every dimension as several, whose extents are consecutive factors; they end where the dimensions do."""
        shape, strides, rest = list[int](), list[int](), list(reversed(factors))
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            done = 1
            while done < extent:
                shape.append(rest.pop(0))
                strides.append(stride * done)
                done *= shape[-1]
        return OperandView(self.dtype, tuple(reversed(shape)), tuple(reversed(strides)))

    @property
    def operand(self) -> Operand:
        """Its layout (element strides, any sign) and element type, as TEIR's emitters take them."""
        width = self.dtype.itemsize
        strides = tuple([stride // width for stride in self.strides])
        return StridedOperand(self.shape, strides, "INT8" if self.dtype == np.bool_ else dtype_name(self.dtype))


def _emit_rows(kind: ProgramKind, views: Sequence[OperandView], out: OperandView) -> Program:
    rank, axes = kind.parameter("rank"), kind.parameter("axes")
    full_shapes = [(1,) * (rank - len(view.shape)) + view.shape for view in views]
    lengths = {k: next((one[k] for one in full_shapes if one[k] != 1), 1) for k in axes}
    whole = len(out.shape) == rank
    free = iter(n for k, n in enumerate(out.shape) if not whole or k not in axes)
    shape = tuple(lengths[k] if k in axes else next(free) for k in range(rank))
    spread = [view.spread(shape) for view in views]
    along = [any(full.strides[k] and shape[k] > 1 for k in axes) for full in spread]
    if not whole and not any(along):
        along[0] = True  # rows of one element each, again and again: some operand says how long they are
    operands = [(full if each else full.without(axes)).operand for full, each in zip(spread, along, strict=True)]
    return emit_chain(kind.steps, operands, out.operand, axes=axes, name="group")


def _emit_attention(kind: ProgramKind, views: Sequence[OperandView], out: OperandView) -> Program:
    letters = kind.parameter("letters")
    key = key_letter(letters)
    kept = letters[3][:-1]
    scores = (*out.shape[:-1], views[1].shape[letters[1].index(key)])
    operands, owns = [view.operand for view in views[:3]], list(letters[:3])
    for view in views[3:]:
        full = view.spread(scores)
        along = full.strides[-1] and scores[-1] > 1
        operands.append((full if along else full.without((len(scores) - 1,))).operand)
        owns.append(kept + key if along else kept)
    return emit_attention(kind.steps, operands, out.operand, [*owns, letters[3]])


def program(kind: ProgramKind, views: Mapping[str, OperandView], out: OperandView) -> Program:
    """The program of one shard, on the tensors that `in_order` lists.

    Args:
        kind: of the program.
        views: the shard's operands by name.
        out: the shard's result.
    """
    values = [view.operand for view in views.values()]
    made = out.operand
    family = kind.family
    if family == "reduction":
        letters = "".join(chr(ord("a") + k) for k in range(len(values[0].shape)))
        kept = "".join(letter for k, letter in enumerate(letters) if k not in kind.parameter("axes"))
        return emit_reduction(MONOIDS[kind.asked], values[0], made, f"{letters}->{kept}")
    if family == "group":
        return _emit_rows(kind, list(views.values()), out)
    if family == "attention":
        return _emit_attention(kind, list(views.values()), out)
    if family == "running":
        return emit_running(RUNNING[kind.operator], values[0], made, kind.parameter("axis"))
    if family == "place":
        return emit_place(PLACES[kind.operator], values[0], made, kind.parameter("axis"))
    if family == "reshape":
        (x,) = views.values()
        factors = factors_of(x.shape, out.shape)
        return emit_copy(x.cut(factors).operand, out.cut(factors).operand, name="reshape")
    if family == "windows":
        return _windowed(kind, views, out)
    if family == "windows, chain":
        return _windowed_chain(kind, views, out)
    if family == "chain":
        spread = [view.spread(out.shape).operand for view in views.values()]
        return emit_chain(kind.steps, spread, made, name=kind.operator)
    equation = kind.parameter("equation")
    if family == "copy":
        return emit_copy(values[0], made, equation)
    emit = emit_contraction_in_pieces if kind.long else emit_contraction
    bias = views["b"].spread(out.shape).operand if "b" in views else None
    name, behind = kind.operator, dict[str, Any]()
    if kind.product is not None:
        name, terms, whole, sums = kind.product
        own = zip(terms, views.values(), strict=False)
        extents = {c: n for one, view in own for c, n in zip(one, view.shape, strict=True)}
        shape, summed = tuple(extents[c] for c in whole), kind.parameter("summed")
        extras = [view.spread(shape).operand for view in list(views.values())[len(terms) :]]
        behind = {"chain": kind.steps, "extras": extras, "sums": sums, "added": summed}
    relu = bias is not None and name == "linear_relu"
    return emit(equation, values[:2], made, init=bias, relu=relu, name=name, **behind)


def _windowed(kind: ProgramKind, views: Mapping[str, OperandView], out: OperandView) -> Program:
    """A convolution or a pooling: the points of its windows are further letters, which overlap in memory."""
    x = views["x"]
    if "w" not in views:
        seen = _seen(x, kind.parameter("window"), out.shape[2:], kind)
        letters = _letters(len(seen.shape))
        kept = letters[: len(out.shape)]
        return emit_reduction(MONOIDS[kind.asked], seen.operand, out.operand, f"{letters}->{kept}")
    w = views["w"]
    spatial = _letters(len(out.shape) - 2)
    inner = spatial.upper()
    seen = _seen(x, w.shape[2:], out.shape[2:], kind)
    if kind.parameter("groups") == 1:
        equation = f"nc{spatial}{inner},fc{inner}->nf{spatial}"
    else:
        filters, channels = kind.parameter("filters"), kind.parameter("channels")
        seen, out = seen.divided(1, channels), out.divided(1, filters)
        w = w.divided(0, filters)
        equation = f"ngc{spatial}{inner},gfc{inner}->ngf{spatial}"
    return emit_contraction(equation, (seen.operand, w.operand), out.operand, name="conv")


def _windowed_chain(kind: ProgramKind, views: Mapping[str, OperandView], out: OperandView) -> Program:
    """A convolution to scratch memory, and the chain from there: unless a backend keeps sums elsewhere."""
    sums = _windowed(kind, views, out)
    extras = [view.spread(out.shape).operand for name, view in views.items() if name not in ("x", "w")]
    chain = emit_chain(kind.steps, [out.operand, *extras], out.operand, name=kind.operator)
    last = sum((n - 1) * abs(stride) for n, stride in zip(out.shape, out.strides, strict=True))
    dtype = dtype_name(out.dtype)
    names = {f"in{k + 1}": f"in{k + 2}" for k in range(len(extras))}
    rows = [spec for spec in chain.tensors if spec.role == "scratch"]
    tensors = (
        *(TensorSpec(f"in{k}", dtype, "in") for k in range(2)),
        *(TensorSpec(names[spec.name], spec.dtype, "in") for spec in chain.tensors if spec.name in names),
        TensorSpec("out", dtype, "out"),
        TensorSpec("sums", dtype, "scratch", last + out.dtype.itemsize),
        *rows,
    )
    parts = (
        (sums, {"in0": "in0", "in1": "in1", "out": "sums"}),
        (chain, {"in0": "sums", **names, "out": "out", **{spec.name: spec.name for spec in rows}}),
    )
    return sequence(parts, tensors, name=kind.operator)


def _letters(count: int) -> str:
    """So many letters, none of which names a batch, group, channel or filter."""
    return "opqrstuvwxyz"[:count]


def _seen(x: OperandView, kernel: Sequence[int], out: Sequence[int], kind: ProgramKind) -> OperandView:
    """The windows of [batch, channels, spatial..] as [batch, channels, windows.., points of a window..]."""
    steps, gaps = kind.parameter("stride"), kind.parameter("dilation")
    strides = x.strides[2:]
    moves = (s * step for s, step in zip(strides, steps, strict=True))
    points = (s * gap for s, gap in zip(strides, gaps, strict=True))
    return OperandView(x.dtype, (*x.shape[:2], *out, *kernel), (*x.strides[:2], *moves, *points))


def whole_program(operation: Operation, stage: str) -> Program | None:
    """The program of a whole operation on dense operands, by which it is decided what computes it; None: it has none.

    Operands without elements have no program: they are answered before any kernel.
    """
    if not lowering(operation, stage):
        return None
    tensors = [(name, tensor) for name, tensor in operation.inputs if stage == "block" or name != "b"]
    _, out = result_of(operation)
    if out.box.empty or any(tensor.type.box.empty for _, tensor in tensors):
        return None
    kind = program_kind(operation, stage, [name for name, _ in tensors])
    return emitted(kind, {name: OperandView.dense(tensor.type) for name, tensor in tensors}, OperandView.dense(out))


# ── programs again ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, eq=False)
class RecordedProgram:
    """A program, and its sizes as they follow from the layouts of operands.

    Args:
        like: the program for some layouts.
        of: numbers of a kind and its operands -> all numbers of the program; None where a decision falls otherwise.
        sizes: makes its `tileweave.teir.ir.form.numbers_of` of the same.
    """

    like: Program
    of: Callable[[Sequence[float]], tuple[float, ...] | None]
    sizes: Table

    def again(self, numbers: Sequence[float]) -> Program | None:
        """The program for other operands; None where it is not this one with other sizes."""
        found = self.of(numbers)
        return None if found is None else _with(self.like, found)


KEPT = 1024
"""Kinds of which programs are recorded, the last ones."""
EACH = 16
"""Programs of one kind that are kept, the last used ones."""
_RECORDED: dict[Hashable, tuple[RecordedProgram, ...]] = {}


def emitted(kind: ProgramKind, views: Mapping[str, OperandView], out: OperandView) -> Program:
    """As `program`; again from a recorded one where there is one that serves."""
    if kind.long:  # how many pieces there are is written out
        return program(kind, views, out)
    key, numbers = _asked(kind, views, out)
    known = _RECORDED.get(key)
    for one in known or ():
        made = one.again(numbers)
        if made is not None:
            if one is not known[0]:  # type: ignore[index]
                _keep(key, one)
            return made
    if known is None:  # most kinds have one size
        _keep(key, None)
        return program(kind, views, out)
    found = _record(kind, views, out)
    if found is None:
        return program(kind, views, out)
    _keep(key, found)
    return found.like


def recorded(kind: ProgramKind, views: Mapping[str, OperandView], out: OperandView) -> RecordedProgram | None:
    """The recorded program that serves operands, where there is one."""
    key, numbers = _asked(kind, views, out)
    return next((one for one in _RECORDED.get(key, ()) if one.of(numbers) is not None), None)


def _asked(kind: ProgramKind, views: Mapping[str, OperandView], out: OperandView) -> tuple[Hashable, list[float]]:
    """What programs are kept by, and the numbers that they follow from."""
    every = [*views.values(), out]
    key = kind.with_numbers([None] * len(kind.numbers())), kind.signs(), *[_shown(view) for view in every]
    return key, [*kind.numbers(), *[n for view in every for n in _sizes_of(view)]]


def _keep(key: Hashable, one: RecordedProgram | None) -> None:
    others = [other for other in _RECORDED.pop(key, ()) if other is not one]
    _RECORDED[key] = tuple(([] if one is None else [one]) + others[: EACH - 1])
    keep_last(_RECORDED, KEPT)


def _shown(view: OperandView) -> Hashable:
    """What a layout says beside sizes: extents of 1 and strides of 0 stay what they are."""
    return view.dtype, tuple([n == 1 for n in view.shape]), tuple([s == 0 for s in view.strides])


def _sizes_of(view: OperandView) -> list[int]:
    return [*[n for n in view.shape if n != 1], *[s for s in view.strides if s]]


def _record(kind: ProgramKind, views: Mapping[str, OperandView], out: OperandView) -> RecordedProgram | None:
    """A program whose sizes are followed; None where a size stands elsewhere than programs have numbers."""
    sizes = Sizes(follows=True)

    def size(number: int, still: int) -> int:
        return still if number == still else sizes.followed(number)

    def view(one: OperandView) -> OperandView:
        shape = tuple([size(n, 1) for n in one.shape])
        return OperandView(one.dtype, shape, tuple([size(s, 0) for s in one.strides]))

    own = kind.with_numbers([sizes.followed_number(number) for number in kind.numbers()])
    made = program(own, {name: view(one) for name, one in views.items()}, view(out))
    numbers = _numbers_in(made)
    if numbers is None:
        return None
    own_sizes = _own_sizes(made)
    sizes.results = tuple(numbers)
    of = Table(sizes).of
    sizes.results = tuple(own_sizes)
    plain = of([*kind.numbers(), *[n for one in (*views.values(), out) for n in _sizes_of(one)]])
    return None if plain is None else RecordedProgram(_with(made, plain), of, Table(sizes))


def _own_sizes(made: Program) -> list[float]:
    """`tileweave.teir.ir.form.numbers_of` a program whose sizes are followed; what is the same in all of its kind is
    recorded."""
    for axis in made.axes:
        _ = axis.extent == 1, [int(offset) for offset in axis.offsets]
    return numbers_of(made)


def _numbers_in(made: Program) -> list[Any] | None:
    """The bytes of its tensors, what its axes say, and the numbers of its metadata; None where others are followed."""
    found: list[Any] = [spec.size_bytes for spec in made.tensors]
    for axis in made.axes:
        found += [axis.extent, *axis.strides, *axis.offsets]
    for primitive in made.primitives:
        for name, value in primitive.metadata:
            if name == "value":
                found.append(value)
            elif isinstance(value, (Word, FollowedNumber)):
                return None
    return found


def _with(like: Program, numbers: Sequence[Any]) -> Program:
    """A program with other numbers, in the order of `_numbers_in`."""
    count = len(like.tensors)
    tensors = tuple(
        [
            TensorSpec(spec.name, spec.dtype, spec.role, n) if spec.role == "scratch" else spec
            for spec, n in zip(like.tensors, numbers, strict=False)
        ]
    )
    at, axes = count, []
    for axis in like.axes:
        strides, offsets = at + 1, at + 1 + count
        end = offsets + count
        axes.append(Axis(axis.id, numbers[at], tuple(numbers[strides:offsets]), tuple(numbers[offsets:end])))
        at = end
    primitives = like.primitives
    if at < len(numbers):
        rest = iter(numbers[at:])
        primitives = tuple([_numbered(one, rest) if one.metadata else one for one in primitives])
    return Program(tensors, tuple(axes), like.roots, like.nodes, primitives, like.profile, like.name)


def _numbered(one: Primitive, numbers: Iterator[Any]) -> Primitive:
    metadata = tuple([(name, next(numbers) if name == "value" else value) for name, value in one.metadata])
    return Primitive(one.id, one.operation, one.axes, one.operands, metadata)
