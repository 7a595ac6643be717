"""The emitter of contractions of any number of operands: one program, pair by pair, by opt_einsum's path.

Intermediate results lie in scratch tensors. A scratch tensor is used again as soon as its value has been read for the
last time, so that a chain of contractions needs about as much memory as its two largest neighbours.

Source: own; the path is opt_einsum's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal

from tileweave.errors import GraphError
from tileweave.layout import strided
from tileweave.teir.emit.compose import sequence
from tileweave.teir.emit.contraction import emit_contraction
from tileweave.teir.emit.elements import emit_copy, emit_reduction
from tileweave.teir.emit.schedule import Chooser, untiled
from tileweave.teir.emit.terms import Operand, check_output, extents_of, parse, refined, shown
from tileweave.teir.ir.dtypes import contraction_dtype, width_bytes
from tileweave.teir.ir.program import Program, TensorSpec

Path = Sequence[tuple[int, ...]]
Init = Literal["zero"] | Operand | None


def emit_einsum(
    equation: str,
    operands: Sequence[Operand],
    out: Operand,
    *,
    accumulate: bool = False,
    init: Init = None,
    relu: bool = False,
    path: Path | None = None,
    tiling: Chooser = untiled,
    name: str = "einsum",
) -> Program:
    """The program of an einsum of one operand or more: ``out = init + sum of in0 * in1 * ..``, then ReLU if asked.

    Args:
        equation: ``"ab,bc,cd->ad"``; letters as for `emit_contraction`.
        operands: in0, in1, ..
        out: no two of its elements may share a byte.
        accumulate: as for `emit_contraction`; the last pair adds.
        init: as for `emit_contraction`.
        relu: as for `emit_contraction`.
        path: which operands are contracted, step by step, as opt_einsum writes it: positions in the list of what is
            left, the result going to its end. None: the path that opt_einsum finds.
        tiling: of every step.
        name: of the program.

    Returns:
        A well-formed program. Its tensors are ``in0, in1, .., out``, ``bias`` for an initial value, and scratch tensors
        ``t0, t1, ..``, which several intermediate results share where their lifetimes do not meet. They hold the type
        in which the whole product is summed: the widest of all operands, FP32 at least.

    Raises:
        GraphError: the equation or the path does not fit the operands; or one operand alone is given with
            ``accumulate``, ``init`` or ``relu``.
        DtypeError: integers and floating point are mixed.
        LayoutError: elements of the output share a byte, or a layout leaves the memory axis ``m``.

    Example:
        >>> from tileweave.layout import strided
        >>> a, b = Operand(strided((2, 30), (30, 1)), "FP32"), Operand(strided((30, 40), (40, 1)), "FP32")
        >>> c, out = Operand(strided((40, 5), (5, 1)), "FP32"), Operand(strided((2, 5), (5, 1)), "FP32")
        >>> program = emit_einsum("ab,bc,cd->ad", (a, b, c), out)
        >>> [(t.name, t.role, t.size_bytes) for t in program.tensors[4:]]
        [('t0', 'scratch', 320)]

    Source: own.
    """
    where = f"emit_einsum({equation!r}, ..)"
    if not operands:
        raise GraphError(where, "no operand is given", legal="one operand or more")
    inputs, output = parse(where, equation, len(operands))
    terms = [*zip(inputs, operands, strict=True), (output, out)]
    extents_of(where, [*terms, (output, init)] if isinstance(init, Operand) else terms)
    check_output(where, output, out)
    for letter in output:
        if letter not in "".join(inputs):
            raise GraphError(where, f"letter {letter!r} of the output is in no input", inputs=shown(terms))
    if len(operands) == 1:
        if accumulate or init is not None or relu:
            raise GraphError(where, "accumulate, init and relu need a contraction", legal="two operands or more")
        if set(inputs[0]) == set(output):
            return emit_copy(operands[0], out, equation, tiling=tiling, name=name)
        return emit_reduction("sum", operands[0], out, equation, tiling=tiling, name=name)
    flat = refined(where, [*terms, (output, init)] if isinstance(init, Operand) else terms)
    terms, (output, out) = flat[: len(terms)], flat[len(terms) - 1]
    inputs, operands = [letters for letters, _ in terms[:-1]], [operand for _, operand in terms[:-1]]
    init = flat[-1][1] if isinstance(init, Operand) else init
    wide = contraction_dtype(*(operand.dtype for _, operand in terms))
    values = {k: _Value(f"in{k}", letters, operand) for k, (letters, operand) in enumerate(terms[:-1])}
    whole = _Value("out", output, out)
    scratch = _Scratch()
    parts: list[tuple[Program, Mapping[str, str]]] = []
    steps = list(_steps(where, inputs, output, operands, path))
    for number, (left, right, kept) in enumerate(steps, start=1):
        a, b = values.pop(left), values.pop(right)
        last = number == len(steps)
        used = output if last else kept
        a, b = (_summed(one, set(used).union(other.letters), wide, scratch, parts) for one, other in ((a, b), (b, a)))
        value = whole if last else _product(kept, a, b, wide, scratch)
        pair = emit_contraction(
            f"{a.letters},{b.letters}->{value.letters}",
            (a.operand, b.operand),
            value.operand,
            accumulate=accumulate and last,
            init=init if last else None,
            relu=relu and last,
            tiling=tiling,
        )
        names = {"in0": a.tensor, "in1": b.tensor, "out": value.tensor, "bias": "bias"}
        names |= {spec.name: scratch.take(spec.size_bytes) for spec in pair.tensors if spec.role == "scratch"}
        parts.append((pair, names))
        scratch.release(a.tensor)
        scratch.release(b.tensor)
        values[len(operands) - 1 + number] = value
    specs = [TensorSpec(f"in{k}", operand.dtype, "in") for k, operand in enumerate(operands)]
    specs.append(TensorSpec("out", out.dtype, "inout" if accumulate else "out"))
    if isinstance(init, Operand):
        specs.append(TensorSpec("bias", init.dtype, "in"))
    specs += [TensorSpec(name, wide, "scratch", size) for name, size in scratch.sizes.items()]
    return sequence(parts, specs, name)


@dataclass(frozen=True, slots=True)
class _Value:
    """An operand or an intermediate result: where it lies and under which letters."""

    tensor: str
    letters: str
    operand: Operand


def _steps(
    where: str, inputs: Sequence[str], output: str, operands: Sequence[Operand], path: Path | None
) -> Iterator[tuple[int, int, str]]:
    """Pairs of values and the letters that their product keeps; operands are values 0, 1, .., results follow."""
    if path is None:
        import opt_einsum

        shapes = [operand.shape for operand in operands]
        path = opt_einsum.contract_path(f"{','.join(inputs)}->{output}", *shapes, shapes=True)[0]
    left = list(enumerate(inputs))
    made = len(inputs)
    for positions in path:
        good = len(set(positions)) == len(positions) and all(0 <= k < len(left) for k in positions)
        if not good or not positions or (len(positions) == 1 and len(left) > 1):
            problem = f"the path's step {tuple(positions)} does not fit the {len(left)} operands that are left"
            raise GraphError(where, problem, legal="two different positions or more per step")
        group = [left[k] for k in sorted(positions)]
        left = [value for k, value in enumerate(left) if k not in positions]
        while len(group) > 1:
            (a, first), (b, second) = group[:2]
            needed = set(output).union(*(letters for _, letters in (*left, *group[2:])))
            kept = "".join(dict.fromkeys(letter for letter in first + second if letter in needed))
            yield a, b, kept
            group = [(made, kept), *group[2:]]
            made += 1
        left += group
    if len(left) > 1:
        raise GraphError(where, f"the path leaves {len(left)} operands", legal="a path that ends with one")


@dataclass(slots=True)
class _Scratch:
    """Scratch tensors of one type: their sizes, and which hold nothing that is still needed."""

    sizes: dict[str, int] = field(default_factory=dict)
    idle: list[str] = field(default_factory=list)

    def take(self, size_bytes: int) -> str:
        """An idle tensor, the least that is large enough or else the largest, which grows; or a new one."""
        fits = [name for name in self.idle if self.sizes[name] >= size_bytes]
        if fits:
            name = min(fits, key=lambda name: self.sizes[name])
        elif self.idle:
            name = max(self.idle, key=lambda name: self.sizes[name])
        else:
            name = f"t{len(self.sizes)}"
            self.idle.append(name)
        self.idle.remove(name)
        self.sizes[name] = max(size_bytes, self.sizes.get(name, 0))
        return name

    def release(self, tensor: str) -> None:
        """The value in a tensor is not read again; operands of the whole are none of ours."""
        if tensor in self.sizes:
            self.idle.append(tensor)


def _summed(
    value: _Value, needed: set[str], wide: str, scratch: _Scratch, parts: list[tuple[Program, Mapping[str, str]]]
) -> _Value:
    """The value without the letters that only it has: ``sum of a*b over both is sum a * sum b``."""
    extents = dict(zip(value.letters, value.operand.shape, strict=True))
    left = "".join(dict.fromkeys(q for q in value.letters if q in needed))
    if all(extents[q] == 1 for q in value.letters if q not in left):
        return value
    shape = [extents[q] for q in left]
    operand = Operand(strided(shape, [prod(shape[k + 1 :]) for k in range(len(shape))]), wide)
    tensor = scratch.take(prod(shape) * width_bytes(wide))
    parts.append(
        (
            emit_reduction("sum", value.operand, operand, f"{value.letters}->{left}"),
            {"in0": value.tensor, "out": tensor},
        )
    )
    scratch.release(value.tensor)
    return _Value(tensor, left, operand)


def _product(kept: str, a: _Value, b: _Value, wide: str, scratch: _Scratch) -> _Value:
    """A place for the product of two values, dense: letters of both slowest, the second's own fastest."""
    both = [letter for letter in kept if letter in a.letters and letter in b.letters]
    order = "".join([*both, *(letter for letter in kept if letter not in both)])
    extents = dict(zip(a.letters + b.letters, a.operand.shape + b.operand.shape, strict=True))
    shape = tuple(extents[letter] for letter in order)
    strides = [prod(shape[k + 1 :]) for k in range(len(shape))]
    tensor = scratch.take(prod(shape) * width_bytes(wide))
    return _Value(tensor, order, Operand(strided(shape, strides), wide))
