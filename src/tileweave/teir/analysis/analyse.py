"""Which bytes a program touches, and whether two of its iterations meet: answers that are exact.

An access is one operand of one invocation. Its addresses are an offset plus a stride times an index for every axis on
the path and every axis that the primitive consumes; guards restrict single indices, so every index has an interval.
Bounds are then closed formulas, and whether two accesses share a byte is one question about bounded integers
(`reach.reach`), answered with a witness or proved impossible; beyond the bound of that search it is `Undecided`.

Tensors are taken to lie in separate memory; `races` compares accesses of the same tensor.

Source: TEIR, sections 10.4 and 10.7.7; the analyses are our own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tileweave.layout.core.search import Term, reach
from tileweave.teir.analysis.calls import Call, bounds, calls
from tileweave.teir.ir.policies import any_order
from tileweave.teir.ir.program import Id, Iteration, Program
from tileweave.teir.ir.verify import Problem, verify
from tileweave.teir.ir.walk import Visit, walk


@dataclass(frozen=True, slots=True)
class Access:
    """One tensor that one invocation touches.

    Args:
        call: the invocation.
        operand: the number of the operand; an operand that is both read and written is one access, the read one.
        writes: whether the invocation writes the tensor.
        monoid: by which it only takes values into the tensor, or ``""``; accesses of one monoid may change places
            where they meet in whole elements.
        terms: per axis, (stride in bytes, least index, greatest index).
    """

    call: Call
    operand: int
    writes: bool
    monoid: str
    terms: tuple[tuple[Id, Term], ...]

    @property
    def visit(self) -> Visit:
        """The invocation and its path."""
        return self.call.visit

    @property
    def tensor(self) -> str:
        """The operand's name."""
        return self.call.names[self.operand]

    @property
    def path(self) -> str:
        """The invocation's path."""
        return self.call.path

    @property
    def offset(self) -> int:
        """Bytes from the base, all offsets included."""
        return self.call.offset(self.operand)

    @property
    def width(self) -> int:
        """Bytes per element."""
        return self.call.width(self.operand)

    def bounds(self) -> tuple[int, int]:
        """The least byte and the byte behind the greatest, relative to the base."""
        return self.call.bounds(self.operand)

    def address(self, indices: Mapping[Id, int]) -> int:
        """The byte of an element, relative to the base."""
        return self.call.address(self.operand, indices)


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two accesses that share a byte, with the indices at which they do.

    Args:
        tensor: whose byte.
        byte: relative to the tensor's base.
        first: the invocation's path and the index of every axis it depends on.
        second: the same for the other access.
    """

    tensor: str
    byte: int
    first: tuple[str, tuple[tuple[Id, int], ...]]
    second: tuple[str, tuple[tuple[Id, int], ...]]

    def __str__(self) -> str:
        def show(access: tuple[str, tuple[tuple[Id, int], ...]]) -> str:
            return f"{access[0]} at (" + ", ".join(f"{id}={index}" for id, index in access[1]) + ")"

        return f"byte {self.byte} of {self.tensor!r}: {show(self.first)} and {show(self.second)}"


def accesses(program: Program) -> tuple[Access, ...]:
    """Every access of a well-formed program, in execution order; invocations that no guard ever admits are left out.

    An operand that a primitive both reads and writes is one access.
    """
    found: list[Access] = []
    for call in calls(program):
        for name in dict.fromkeys(call.names):
            k, writes = call.names.index(name), name == call.names[-1]
            monoid = call.spec.monoid if writes and name not in call.names[:-1] else ""
            terms = tuple((span.axis.id, term) for span, term in zip(call.spans, call.terms(k), strict=True))
            found.append(Access(call, k, writes, monoid, terms))
    return tuple(found)


def byte_bounds(program: Program) -> dict[str, tuple[int, int]]:
    """Per tensor that is touched, the least byte and the byte behind the greatest, relative to its base; exact.

    Raises:
        VerifyError: the program is not well formed.

    Example:
        >>> from tileweave.teir.ir.program import Axis, Invocation, Iteration, Primitive, Program, TensorSpec
        >>> zero = Primitive("z", "Zero", (("M", ()), ("N", ())), ("out",))
        >>> nodes = (Iteration("n", "n", ("zero",)), Invocation("zero", "z"))
        >>> out = TensorSpec("out", "FP32", "out")
        >>> byte_bounds(Program((out,), (Axis("n", 5, (-4,), (8,)),), ("n",), nodes, (zero,)))
        {'out': (-8, 12)}
    """
    verify(program)
    return bounds(program)


def out_of_bounds(program: Program, buffers: Mapping[str, int | tuple[int, int]]) -> tuple[Problem, ...]:
    """The accesses that leave the given buffers; empty exactly when every byte that is ever touched lies inside.

    Args:
        program: well formed.
        buffers: per tensor, its size in bytes from the base, or the interval of legal bytes relative to the base, end
            excluded. Scratch tensors have their own size.

    Raises:
        VerifyError: the program is not well formed.
    """
    verify(program)
    sizes = {spec.name: spec.size_bytes for spec in program.tensors if spec.role == "scratch"}
    legal: dict[str, tuple[int, int]] = {}
    for name, given in {**sizes, **buffers}.items():
        legal[name] = given if isinstance(given, tuple) else (0, given)
    found = []
    for access in accesses(program):
        low, high = access.bounds()
        first, end = legal.get(access.tensor, (0, 0))
        if low < first or high > end:
            message = f"it touches bytes {low}..{high - 1} of {access.tensor!r}"
            found.append(Problem("address.in-bounds", access.path, message, f"bytes {first}..{end - 1}"))
    return tuple(found)


def races(program: Program) -> Conflict | None:
    """Two different iterations of a parallel node, one of which writes a byte that the other reads or writes, or None.

    Iterations of the nodes above are the same for both; iterations below may differ. None is a proof.

    Args:
        program: well formed.

    Raises:
        VerifyError: the program is not well formed.
        Undecided: the search passed its bound.
    """
    verify(program)
    found = accesses(program)
    for visit in walk(program):
        if isinstance(visit.node, Iteration) and any_order(visit.node.policy):
            conflict = iterations_conflict(program, found, visit)
            if conflict is not None:
                return conflict
    return None


def commute(a: Access, b: Access) -> bool:
    """Whether two accesses take values into the tensor by one commutative monoid, whole elements at a time.

    They may then change places where they meet in the same element; not where elements share only some of their bytes.
    """
    return a.monoid != "" and a.monoid == b.monoid


def iterations_conflict(
    program: Program,
    found: Collection[Access],
    visit: Visit,
    *,
    reordered: bool = False,
) -> Conflict | None:
    """A byte on which two different iterations of one node conflict, or None.

    Args:
        program: well formed.
        found: its `accesses`.
        visit: the iteration node.
        reordered: as for `find_conflict`.
    """
    node = visit.node
    if not isinstance(node, Iteration):
        return None
    below = [access for access in found if node in access.visit.path]
    fixed = {above.axis for above in visit.path}
    last = program.axis(node.axis).extent - 1
    for k, a in enumerate(below):
        for b in below[k:]:
            if a.tensor != b.tensor or not (a.writes or b.writes):
                continue
            for between in ((1, last), (-last, -1)):
                conflict = find_conflict(a, b, fixed, {node.axis: between}, reordered=reordered)
                if conflict is not None:
                    return conflict
    return None


def find_conflict(
    a: Access,
    b: Access,
    fixed: Collection[Id],
    between: Mapping[Id, tuple[int, int]],
    *,
    reordered: bool = False,
) -> Conflict | None:
    """A byte that two accesses of one tensor share, or None: there is none.

    Args:
        a: one access.
        b: the other.
        fixed: axes whose index is the same for both.
        between: axes with the least and greatest value of a's index minus b's. All other axes are free.
        reordered: whether they change places and do not run at once: then steps that `commute` are no conflict where
            they meet in the same element.
    """
    left, right = dict(a.terms), dict(b.terms)
    ids = [*left, *(id for id in right if id not in left)]
    start = a.offset - b.offset
    apart = [(1 - a.width, b.width - 1)]
    if reordered and commute(a, b):
        apart = [(1 - a.width, -1), (1, b.width - 1)]
    for low, high in apart:
        terms: list[Term] = []
        for id in ids:
            if id in left and id in right:
                terms.append(_difference(left[id], right[id], between.get(id), id in fixed))
            elif id in left:
                terms.append(left[id])
            else:
                stride, least, greatest = right[id]
                terms.append((-stride, least, greatest))
        factors = reach(terms, low - start, high - start)
        if factors is not None:
            return _shared(a, b, dict(zip(ids, factors, strict=True)))
    return None


def _shared(a: Access, b: Access, factors: Mapping[Id, int]) -> Conflict:
    """The conflict that the search has found: differences of common indices, and indices of one access alone."""
    left, right = dict(a.terms), dict(b.terms)
    first: dict[Id, int] = {}
    second: dict[Id, int] = {}
    for id, factor in factors.items():
        if id in left and id in right:
            first[id] = max(left[id][1], right[id][1] + factor)
            second[id] = first[id] - factor
        elif id in left:
            first[id] = factor
        else:
            second[id] = factor
    byte = max(a.address(first), b.address(second))
    return Conflict(a.tensor, byte, (a.path, tuple(first.items())), (b.path, tuple(second.items())))


def _difference(left: Term, right: Term, between: tuple[int, int] | None, same: bool) -> Term:
    """The term of one axis' index difference: both strides are the axis' own, so only the difference counts."""
    stride, low, high = left
    least, greatest = low - right[2], high - right[1]
    if same:
        # equal indices exist exactly when the intervals meet
        return (stride, 0, 0) if least <= 0 <= greatest else (stride, 0, -1)
    if between is not None:
        least, greatest = max(least, between[0]), min(greatest, between[1])
    return stride, least, greatest
