"""Emitters of row programs: several operations on one row after the other, then the next row.

A *row* is what a primitive consumes: the axes that are normalised, or the fastest axis of a chain. All other axes are
loops. Results per row, and rows in a wider type than the operands', lie in scratch memory; a scratch row serves many
rows in turn, so the loop around it is cut into chunks that may run at once.

Source: own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tileweave.errors import DtypeError, GraphError
from tileweave.teir.emit.schedule import Dim, Role, fuse_dims
from tileweave.teir.emit.terms import (
    Operand,
    Term,
    check_output,
    dims_of,
    extents_of,
    letter_strides,
    parse,
    refined,
    shown,
)
from tileweave.teir.ir.dtypes import accumulator, is_float, width_bytes
from tileweave.teir.ir.extensions import BINARY, CHOICES, FILL, PAIR, UNARY
from tileweave.teir.ir.primitives import operation as named
from tileweave.teir.ir.program import (
    Axis,
    Id,
    Invocation,
    Iteration,
    Node,
    Policy,
    Primitive,
    Program,
    Scalar,
    TensorSpec,
)

__all__ = ["Rows", "emit_chain", "emit_layer_norm", "emit_max_sum_exp", "emit_rms_norm", "emit_softmax"]

_CHUNKS = 64
"""Parts of the outermost loop around a scratch row, at most where it divides."""


@dataclass(slots=True)
class Rows:
    """A row program under construction: dims of the operands first, then scratch tensors, then steps.

    Args:
        name: of the program.
        terms: the operands with their letters, the output last.
        row: the letters of a row; none: the output's fastest letter.
        changes: whether the output holds a value on entry.
    """

    name: str
    terms: Sequence[Term]
    row: str | None
    changes: bool = False
    tensors: list[TensorSpec] = field(default_factory=list)
    dims: list[Dim] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    axes: list[Axis] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    primitives: list[Primitive] = field(default_factory=list)
    constants: list[Id] = field(default_factory=list)
    body: list[Id] = field(default_factory=list)

    def __post_init__(self) -> None:
        where, given = f"emit {self.name}", {letter for letters, _ in self.terms for letter in letters}
        self.terms = refined(where, self.terms)
        extents = extents_of(where, self.terms)
        strides = [letter_strides(letters, operand) for letters, operand in self.terms]
        row = set()
        for letters, _ in self.terms:
            origin = ""
            for letter in letters:
                origin = letter if letter in given else origin  # parts of a letter follow it
                row |= {letter} if origin in (self.row or "") else set()
        if self.row is None:
            moving = [letter for letter in self.terms[-1][0] if extents[letter] > 1]
            row = {min(moving, key=lambda letter: abs(strides[-1][letter]))} if moving else row

        def role(letter: str) -> Role:
            return "K" if letter in row else "M"

        dims = fuse_dims(dims_of(extents, strides, role))
        self.dims = sorted(dims, key=lambda dim: (dim.role == "K", -abs(dim.strides[-1])))
        count = len(self.terms) - 1
        for k, (_, operand) in enumerate(self.terms):
            kind = "in" if k < count else "inout" if self.changes else "out"
            self.tensors.append(TensorSpec(f"in{k}" if k < count else "out", operand.dtype, kind))  # type: ignore[arg-type]
            self.offsets.append(operand.offset_bytes)

    # ---- scratch ------------------------------------------------------------------------------------------------

    def scratch(self, name: str, dtype: str, strides: Sequence[int]) -> str:
        """A scratch tensor that moves along the dims as told."""
        size = width_bytes(dtype) + sum(s * (dim.extent - 1) for s, dim in zip(strides, self.dims, strict=True))
        self.tensors.append(TensorSpec(name, dtype, "scratch", size))
        self.offsets.append(0)
        self.dims = [
            replace(dim, strides=(*dim.strides, stride)) for dim, stride in zip(self.dims, strides, strict=True)
        ]
        return name

    def packed(self, name: str, dtype: str, wanted: Sequence[bool]) -> str:
        """A scratch tensor without gaps over some of the dims."""
        step, strides = width_bytes(dtype), [0] * len(self.dims)
        for k in reversed(range(len(self.dims))):
            if wanted[k]:
                strides[k], step = step, step * self.dims[k].extent
        return self.scratch(name, dtype, strides)

    def per_row(self, name: str, dtype: str) -> str:
        """One element per row."""
        return self.packed(name, dtype, [dim.role == "M" for dim in self.dims])

    def scratch_row(self, name: str, dtype: str) -> str:
        """A row, one per chunk of the longest loop, which is cut where that has not happened yet."""
        loops = [dim for dim in self.dims if dim.role == "M"]
        chunks = [dim for dim in loops if dim.name.endswith("_chunk")]
        if loops and not chunks:
            longest = max(loops, key=lambda dim: dim.extent)
            count = max((d for d in range(1, _CHUNKS + 1) if longest.extent % d == 0), default=1)
            count = count if count >= min(8, longest.extent) else longest.extent
            each = longest.extent // count
            chunk = Dim(f"{longest.name}_chunk", count, tuple(each * s for s in longest.strides), "M")
            inner = [Dim(longest.name, each, longest.strides, "M")] if each > 1 else []
            self.dims = [chunk, *inner, *(dim for dim in self.dims if dim is not longest)]
        return self.packed(name, dtype, [dim.role == "K" or dim.name.endswith("_chunk") for dim in self.dims])

    def constant(self, name: str, dtype: str, value: float) -> str:
        """One number, written before the first row."""
        self.scratch(name, dtype, [0] * len(self.dims))
        self.constants.append(self.invoke(FILL, (name,), {"M": (), "N": ()}, (("value", value),)))
        return name

    # ---- steps --------------------------------------------------------------------------------------------------

    def each(self, operation: str, *operands: str) -> None:
        """An operation on every element of a row."""
        self.body.append(self.invoke(operation, operands, {"M": (), "N": self.row_axes()}))

    def once(self, operation: str, *operands: str) -> None:
        """An operation on what there is once per row."""
        self.body.append(self.invoke(operation, operands, {"M": (), "N": ()}))

    def over(self, operation: str, *operands: str) -> None:
        """A reduction of a row."""
        self.body.append(self.invoke(operation, operands, {"M": (), "N": (), "K": self.row_axes()}))

    def row_axes(self) -> tuple[Id, ...]:
        """The axes of a row."""
        return tuple(dim.name for dim in self.dims if dim.role == "K")

    def invoke(
        self,
        operation: str,
        operands: tuple[str, ...],
        roles: dict[str, tuple[Id, ...]],
        metadata: tuple[tuple[str, Scalar], ...] = (),
    ) -> Id:
        """A primitive and its invocation."""
        used = sum(primitive.operation == operation for primitive in self.primitives)
        id = operation.lower() + (str(used + 1) if used else "")
        self.primitives.append(Primitive(id, operation, tuple(roles.items()), operands, metadata))
        self.nodes.append(Invocation(id, id))
        return id

    def program(self) -> Program:
        """The whole: constants, then the loops over rows around the body."""
        loops = [dim for dim in self.dims if dim.role == "M"]
        chunked = any(dim.name.endswith("_chunk") for dim in loops)
        axes = [Axis(dim.name, dim.extent, dim.strides, (0,) * len(self.tensors)) for dim in self.dims] + self.axes
        outer: list[tuple[str, Policy]] = []
        if any(self.offsets):
            axes.insert(0, Axis("origin", 1, (0,) * len(self.tensors), tuple(self.offsets)))
            outer.append(("origin", "parallel"))
        for dim in loops:
            alone = chunked and not dim.name.endswith("_chunk")
            outer.append((dim.name, "sequential" if alone else "parallel"))
        nodes: list[Node] = []
        below = tuple(self.body)
        for name, policy in reversed(outer):
            nodes.insert(0, Iteration(f"each {name}", name, below, policy))
            below = (f"each {name}",)
        roots = (*self.constants, *below)
        return Program(
            tuple(self.tensors),
            tuple(axes),
            roots,
            (*nodes, *self.nodes),
            tuple(self.primitives),
            "tileweave",
            self.name,
        )


def _letters(operand: Operand, axes: Sequence[int], where: str) -> tuple[str, str]:
    """A letter per index, and those of some axes, which may count from the end."""
    rank = len(operand.shape)
    letters = "".join(map(chr, range(ord("a"), ord("a") + rank)))
    if not axes or any(not -rank <= axis < rank for axis in axes) or len({a % rank for a in axes}) < len(axes):
        raise GraphError(where, f"axes {tuple(axes)} of {rank} indices", legal="one or more axes, each once")
    return letters, "".join(letters[axis] for axis in axes)


def _checked(where: str, source: Operand, out: Operand, others: Sequence[Operand] = ()) -> str:
    """The type that is computed in; or why the operands do not fit."""
    if source.shape != out.shape:
        raise GraphError(where, f"shapes {source.shape} and {out.shape} differ", legal="one shape")
    check_output(where, "".join(map(chr, range(ord("a"), ord("a") + len(out.shape)))), out)
    if source.dtype != out.dtype or not is_float(source.dtype):
        raise DtypeError(where, f"{source.dtype} to {out.dtype}", legal="one floating-point type")
    wide = accumulator(source.dtype)
    for operand in others:
        why = named("Scale").dtypes((operand.dtype, wide))
        if why:
            raise DtypeError(where, f"{operand.dtype} with {source.dtype}", legal=f"{source.dtype}, or a narrower type")
    return wide


def emit_softmax(
    source: Operand, out: Operand, axes: Sequence[int] = (-1,), *, log: bool = False, name: str = "softmax"
) -> Program:
    """The program of ``out = exp(in0 - max) / sum(exp(in0 - max))`` over some axes, row by row; or of its logarithm.

    Args:
        source: in0, floating point.
        out: of the same shape and type; no two of its elements may share a byte.
        axes: which are normalised together.
        log: ``in0 - max - log(sum(exp(in0 - max)))`` instead.
        name: of the program.

    Returns:
        A well-formed program. BF16 and FP16 are computed in FP32 and rounded once. A row that holds NaN or inf, or
        nothing but -inf, gives NaN.

    Raises:
        GraphError: the shapes or the axes do not fit.
        DtypeError: the types differ or are integers.
        LayoutError: elements of the output share a byte, or a layout leaves the memory axis ``m``.

    Example:
        >>> from tileweave.layout import strided
        >>> a = Operand(strided((4, 8), (8, 1)), "FP32")
        >>> [p.operation for p in emit_softmax(a, a).primitives]
        ['Lowest', 'ReduceMax', 'Sub', 'Exp', 'Zero', 'ReduceSum', 'One', 'Div', 'Scale']
    """
    where = "emit_softmax(source, out)"
    wide = _checked(where, source, out)
    letters, row = _letters(source, axes, where)
    p = Rows(name, [(letters, source), (letters, out)], row)
    values, held = "in0", "out"
    top, total = p.per_row("top", wide), p.per_row("total", wide)
    inverse = total if log else p.per_row("inverse", wide)
    if wide != out.dtype:
        values = held = p.scratch_row("row", wide)
    e = p.scratch_row("e", wide) if log else held
    if wide != out.dtype:
        p.each("Cast", "in0", values)
    p.once("Lowest", top)
    p.over("ReduceMax", values, top)
    p.each("Sub", values, top, held)
    p.each("Exp", held, e)
    p.once("Zero", total)
    p.over("ReduceSum", e, total)
    if log:
        p.once("Log", total, total)
        p.each("Sub", held, total, held)
    else:
        p.once("One", inverse)
        p.once("Div", inverse, total, inverse)
        p.each("Scale", inverse, held)
    if wide != out.dtype:
        p.each("Cast", held, "out")
    return p.program()


def emit_layer_norm(
    source: Operand,
    out: Operand,
    scale: Operand | None = None,
    shift: Operand | None = None,
    axes: Sequence[int] = (-1,),
    *,
    epsilon: float = 1e-5,
    name: str = "layer_norm",
) -> Program:
    """The program of ``out = (in0 - mean) / sqrt(variance + epsilon) * scale + shift`` over some axes, row by row.

    Args:
        source: in0, floating point.
        out: of the same shape and type; no two of its elements may share a byte.
        scale: the next input, with the shape of the normalised axes in their order; none: 1.
        shift: the next input, likewise; none: 0.
        axes: which are normalised together.
        epsilon: added to the variance, which divides by the number of elements.
        name: of the program.

    Returns:
        A well-formed program. The mean is taken first, then the sum of squares of what is left, both in FP32 at least.

    Raises:
        GraphError: the shapes or the axes do not fit.
        DtypeError: the types differ or are integers.
        LayoutError: elements of the output share a byte, or a layout leaves the memory axis ``m``.

    Example:
        >>> from tileweave.layout import strided
        >>> a, b = Operand(strided((4, 8), (8, 1)), "FP32"), Operand(strided((8,), (1,)), "FP32")
        >>> [t.name for t in emit_layer_norm(a, a, b, b).tensors if t.role != "scratch"]
        ['in0', 'in1', 'in2', 'out']
    """
    where = "emit_layer_norm(source, out)"
    p, wide, extra = _normalised(where, name, source, out, scale, shift, axes)
    each, small = _constants(p, source, axes, wide, epsilon)
    mean, deviation = p.per_row("mean", wide), p.per_row("deviation", wide)
    inverse = p.per_row("inverse", wide)
    values, held = "in0", "out"
    if wide != out.dtype:
        values = held = p.scratch_row("row", wide)
        p.each("Cast", "in0", values)
    p.once("Zero", mean)
    p.over("ReduceSum", values, mean)
    p.once("Scale", each, mean)
    p.each("Sub", values, mean, held)
    p.once("Zero", deviation)
    p.over("Contraction", held, held, deviation)
    _inverted(p, each, small, deviation, inverse)
    p.each("Scale", inverse, held)
    _finished(p, extra, held, wide != out.dtype)
    return p.program()


def emit_rms_norm(
    source: Operand,
    out: Operand,
    scale: Operand | None = None,
    axes: Sequence[int] = (-1,),
    *,
    epsilon: float = 1e-5,
    name: str = "rms_norm",
) -> Program:
    """The program of ``out = in0 / sqrt(mean of squares + epsilon) * scale`` over some axes, row by row.

    Args, Returns and Raises as for `emit_layer_norm`, without the mean and the shift.

    Example:
        >>> from tileweave.layout import strided
        >>> a = Operand(strided((4, 8), (8, 1)), "FP32")
        >>> [p.operation for p in emit_rms_norm(a, a).primitives][2:]
        ['Zero', 'Contraction', 'Scale', 'Bias', 'Sqrt', 'One', 'Div', 'Mul']
    """
    where = "emit_rms_norm(source, out)"
    p, wide, extra = _normalised(where, name, source, out, scale, None, axes)
    each, small = _constants(p, source, axes, wide, epsilon)
    squares, inverse = p.per_row("squares", wide), p.per_row("inverse", wide)
    held = p.scratch_row("row", wide) if wide != out.dtype else "out"
    p.once("Zero", squares)
    p.over("Contraction", "in0", "in0", squares)
    _inverted(p, each, small, squares, inverse)
    if wide != out.dtype:
        p.each("Cast", "in0", held)
        p.each("Scale", inverse, held)
    else:
        p.each("Mul", "in0", inverse, held)
    _finished(p, extra, held, wide != out.dtype)
    return p.program()


def _normalised(
    where: str,
    name: str,
    source: Operand,
    out: Operand,
    scale: Operand | None,
    shift: Operand | None,
    axes: Sequence[int],
) -> tuple[Rows, str, list[tuple[str, str]]]:
    """The row program of a norm, the type that it is computed in, and its last operations with their inputs."""
    given = [(kind, operand) for kind, operand in (("Scale", scale), ("Bias", shift)) if operand is not None]
    wide = _checked(where, source, out, [operand for _, operand in given])
    letters, row = _letters(source, axes, where)
    terms = [(letters, source), *((row, operand) for _, operand in given), (letters, out)]
    extra = [(kind, f"in{k + 1}") for k, (kind, _) in enumerate(given)]
    return Rows(name, terms, row), wide, extra


def _constants(p: Rows, source: Operand, axes: Sequence[int], wide: str, epsilon: float) -> tuple[str, str]:
    """One over the number of elements of a row, and epsilon."""
    count = 1
    for axis in axes:
        count *= source.shape[axis]
    return p.constant("each", wide, 1 / count), p.constant("epsilon", wide, float(epsilon))


def _inverted(p: Rows, each: str, small: str, squares: str, inverse: str) -> None:
    """``1 / sqrt(squares * each + small)``."""
    p.once("Scale", each, squares)
    p.once("Bias", small, squares)
    p.once("Sqrt", squares, squares)
    p.once("One", inverse)
    p.once("Div", inverse, squares, inverse)


def _finished(p: Rows, extra: Sequence[tuple[str, str]], held: str, narrow: bool) -> None:
    for kind, operand in extra:
        p.each(kind, operand, held)
    if narrow:
        p.each("Cast", held, "out")


def emit_chain(
    steps: Sequence[tuple[str, tuple[int, ...]] | tuple[str, tuple[int, ...], str]],
    operands: Sequence[Operand],
    out: Operand,
    equation: str | None = None,
    *,
    name: str = "chain",
) -> Program:
    """The program of an expression of elements: several elementwise operations, of which only the last is stored.

    Args:
        steps: (operation, arguments) or (operation, arguments, element type of the result); an argument ``k >= 0`` is
            input k, ``-1 - k`` is the result of step k. Operations are those of `extensions.UNARY`, `BINARY` and
            `CHOICES`, ReLU and Copy. The type of a result is by default that of the last argument; Cast and comparisons
            name it.
        operands: the inputs; zero strides broadcast.
        out: takes the last result, of its type; no two of its elements may share a byte.
        equation: ``"ab,b->ab"``; by default all operands have the same indices in the same order.
        name: of the program.

    Returns:
        A well-formed program; results in between lie in scratch rows along the output's fastest axis.

    Raises:
        GraphError: there is no such operation or argument, or the shapes or the equation do not fit.
        DtypeError: the element types do not fit an operation.
        LayoutError: elements of the output share a byte, or a layout leaves the memory axis ``m``.

    Example:
        >>> from tileweave.layout import strided
        >>> a, row = Operand(strided((4, 8), (8, 1)), "FP32"), Operand(strided((8,), (1,)), "FP32")
        >>> program = emit_chain([("Add", (0, 1)), ("ReLU", (-1,))], (a, row), a, "ab,b->ab")
        >>> [(p.operation, *p.operands) for p in program.primitives]
        [('Add', 'in0', 'in1', 'step0'), ('ReLU', 'step0', 'out')]
    """
    where = "emit_chain(steps, operands, out)"
    output = "".join(map(chr, range(ord("a"), ord("a") + len(out.shape))))
    inputs = [output] * len(operands)
    if equation is not None:
        inputs, output = parse(where, equation, len(operands))
    terms = [*zip(inputs, operands, strict=True), (output, out)]
    extents_of(where, terms)
    check_output(where, output, out)
    if set("".join(inputs)) - set(output):
        raise GraphError(where, "a letter of an input is not in the output", inputs=shown(terms))
    if not steps:
        raise GraphError(where, "there are no steps", legal="one or more")
    p = Rows(name, terms, None)
    types, names, results = [operand.dtype for operand in operands], [f"in{k}" for k in range(len(operands))], []
    for k, (kind, arguments, dtype) in enumerate(_typed(where, steps, types)):
        last = k == len(steps) - 1
        target = "out" if last else p.scratch_row(f"step{k}", dtype)
        if last and dtype != out.dtype:
            raise DtypeError(where, f"the last result is {dtype} and the output {out.dtype}", legal="a Cast at the end")
        results.append(target)
        p.each(kind, *(names[a] if a >= 0 else results[-1 - a] for a in arguments), target)
    return p.program()


def _typed(
    where: str,
    steps: Sequence[tuple[str, tuple[int, ...]] | tuple[str, tuple[int, ...], str]],
    inputs: list[str],
) -> list[tuple[str, tuple[int, ...], str]]:
    """The steps with the type of each result; or why they do not fit."""
    legal, typed = ("Copy", "ReLU", *UNARY, *BINARY, *CHOICES), list[tuple[str, tuple[int, ...], str]]()
    for k, step in enumerate(steps):
        kind, arguments = step[0], tuple(step[1])
        if kind not in legal:
            raise GraphError(where, f"step {k}: there is no such operation {kind!r}", legal=", ".join(legal))
        if len(arguments) != named(kind).inputs or not all(-k <= a < len(inputs) for a in arguments):
            problem = f"step {k}: {kind} of {', '.join(map(str, arguments)) or 'nothing'}"
            raise GraphError(
                where, problem, legal=f"{named(kind).inputs} of -{k}..{len(inputs) - 1}" if k else "inputs"
            )
        dtypes = [inputs[a] if a >= 0 else typed[-1 - a][2] for a in arguments]
        dtype = step[2] if len(step) > 2 else dtypes[-1]
        why = named(kind).dtypes((*dtypes, dtype))
        if why:
            raise DtypeError(where, f"step {k}: {why}", legal="a Cast before it")
        typed.append((kind, arguments, dtype))
    return typed


def emit_max_sum_exp(
    source: Operand, out: Operand, equation: str, *, accumulate: bool = False, name: str = "max_sum_exp"
) -> Program:
    """The program of the running pairs ``out[i] = (max, sum of exp(in0[i, k] - max)) over k``.

    Args:
        source: in0, floating point.
        out: FP32 or FP64; its last index, of extent 2, is the pair and has no letter.
        equation: ``"ab->a"``: the letters that the output lacks are reduced over. At least one is.
        accumulate: take the values into the pairs that the output holds, instead of into (-inf, 0).
        name: of the program.

    Returns:
        A well-formed program; cutting the reduced axes into several such programs keeps the value, up to rounding.

    Raises:
        GraphError: the equation does not fit.
        DtypeError: the element types do not fit.
        LayoutError: elements of the output share a byte, or a layout leaves the memory axis ``m``.

    Example:
        >>> from tileweave.layout import strided
        >>> a, pairs = Operand(strided((4, 8), (8, 1)), "FP32"), Operand(strided((4, 2), (2, 1)), "FP32")
        >>> [p.operation for p in emit_max_sum_exp(a, pairs, "ab->a").primitives]
        ['LowestZero', 'ReduceMaxSumExp']
    """
    where = "emit_max_sum_exp(source, out)"
    inputs, output = parse(where, equation, 1)
    if not out.shape or out.shape[-1] != 2:
        raise GraphError(where, f"the output's shape is {out.shape}", legal="a last index of extent 2 for the pair")
    half = next(chr(c) for c in range(ord("A"), ord("z")) if chr(c).isalpha() and chr(c) not in equation)
    why = named(PAIR[1]).dtypes((source.dtype, out.dtype)) or named(PAIR[0]).dtypes((out.dtype,))
    if why:
        raise DtypeError(where, why, legal="floating point into FP32 or FP64")
    terms = [(inputs[0], source), (output + half, out)]
    extents_of(where, terms)
    check_output(where, output + half, out)
    row = "".join(dict.fromkeys(letter for letter in inputs[0] if letter not in output))
    if set(output) - set(inputs[0]) or not row:
        raise GraphError(
            where, "it reduces over nothing, or repeats a row", inputs=shown(terms), legal="the form 'ab->a'"
        )
    p = Rows(name, terms, row + half, accumulate)
    pair = tuple(dim.name for dim in p.dims if half in dim.name)
    row_axes = tuple(dim.name for dim in p.dims if dim.role == "K" and half not in dim.name)
    if not accumulate:
        p.body.append(p.invoke(PAIR[0], ("out",), {"M": (), "N": (), "P": pair}))
    p.body.append(p.invoke(PAIR[1], ("in0", "out"), {"M": (), "N": (), "K": row_axes, "P": pair}))
    return p.program()
