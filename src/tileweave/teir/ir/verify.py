"""Every rule for well-formed programs: one function and one rule id each.

Rules of the profile ``both`` come from section 10.5; the others say what one profile adds.
Where the document leaves a question open, the rule states our choice:

- ``path.axis-once``: an axis is iterated at most once on a path. (Twice would make first(axis) ambiguous.)
- ``path.iterated-or-consumed``: an axis that an ancestor iterates is not consumed by the primitive below it.
- ``primitive.axis-in-one-role``: an axis appears once in one role of a primitive.
- *Offsets of primitive axes enter the address*: an element lies at the tile's address plus, for each consumed axis, its
  offset and its index times its stride, exactly as for an iterated axis. So moving an axis between the schedule and a
  primitive never moves an address. (No rule to break; `interpret` and `analyse` follow it.)
- ``path.depth``: an invocation has at most `DEPTH_LIMIT` axes, which bounds how deep any part of this package recurses.
- ``program.types``, ``program.names`` and ``path.depth`` come first, and where one is broken nothing else is asked.
- ``contraction.contracted-axes`` and ``contraction.free-axes`` (``tileweave`` profile): K axes stand still on the
  output; M and N axes of more than one step move on it. Batch axes, which move on all three, may be M or N.

Source: TEIR, section 10.5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from tileweave.errors import VerifyError
from tileweave.teir.ir import form
from tileweave.teir.ir.dtypes import DTYPES, FACTORS
from tileweave.teir.ir.form import ADDRESS_LIMIT, is_finite, is_integer, is_like_known, keep_known, shown, shown_tuple
from tileweave.teir.ir.policies import DOCUMENT_POLICIES, policies
from tileweave.teir.ir.primitives import DOCUMENT_OPERATIONS, OperationSpec, operands_of, operation, operations
from tileweave.teir.ir.program import First, Invocation, Iteration, Last, Primitive, Program
from tileweave.teir.ir.text import tree
from tileweave.teir.ir.walk import axes_by_id, nodes_by_id, primitives_by_id, printed, show_path, walk


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule at one place.

    Args:
        rule: the rule's id.
        path: where: ``axis 'k'``, ``primitive 'p'``, or a node by its path ``a/b/c``.
        message: what is wrong, one sentence without a final stop.
        legal: what would be accepted.
    """

    rule: str
    path: str
    message: str
    legal: str = ""

    def __str__(self) -> str:
        return f"[{self.rule}] {self.path}: {self.message}"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its id, the profile in which it holds, its law, and the function that finds what breaks it."""

    id: str
    profile: Literal["both", "document", "tileweave"]
    law: str
    check: Callable[[Program], Iterator[tuple[str, str]]]

    def problems(self, program: Program) -> tuple[Problem, ...]:
        """What breaks the rule in a program, whatever its profile."""
        return tuple(Problem(self.id, path, message, self.law) for path, message in self.check(program))


_RULES: list[Rule] = []
Check = Callable[[Program], Iterator[tuple[str, str]]]


def _rule(id: str, law: str, profile: Literal["both", "document", "tileweave"] = "both") -> Callable[[Check], Check]:
    def add(check: Check) -> Check:
        _RULES.append(Rule(id, profile, law, check))
        return check

    return add


def problems(program: Program) -> tuple[Problem, ...]:
    """Everything that is wrong with a program, by the rules of its profile; empty exactly for well-formed programs.

    Example:
        >>> from tileweave.teir.ir.program import Axis
        >>> for problem in problems(Program((), (Axis("a", 0, (), ()),), (), (), ())):
        ...     print(problem)
        [axis.extent-positive] axis 'a': its extent is 0
    """
    found: list[Problem] = []
    for rule in RULES:
        if rule.profile == "both" or rule.profile == program.profile:
            found += rule.problems(program)
            if found and rule.id in _FORM:
                break  # the others take well-typed programs of bounded depth
    return tuple(found)


_FORM = ("program.types", "program.names", "path.depth")
"""The rules without which no other can be asked, first in `RULES`."""

_passed: object = object()  # the last program that passed: a value, so it passes again


def verify(program: Program) -> None:
    """Passes a well-formed program, and only that.

    Raises:
        VerifyError: the first problem, with the schedule tree; ``facts`` hold ``rule``, ``path`` and all ``problems``.
    """
    global _passed
    if program is _passed or is_like_known(program):
        return
    found = problems(program)
    if found:
        raise failure("verify(program)", program, found)
    _passed = program
    keep_known(program)


def failure(where: str, program: Program, found: tuple[Problem, ...]) -> VerifyError:
    """The error for problems of a program: the first one, how many more there are, and the schedule tree."""
    first = found[0]
    inputs = {"rule": first.rule, "program": printed(getattr(program, "name", program))}
    if first.rule not in _FORM:
        lines = tree(program).splitlines()
        if len(lines) > 40:
            lines = [*lines[:39], f".. {len(lines) - 39} more lines"]
        inputs["program"] = "\n".join([program.name, *lines])
    if len(found) > 1:
        inputs["also"] = "\n".join(map(str, found[1:6])) + (f"\n.. {len(found) - 6} more" if len(found) > 6 else "")
    facts = {"rule": first.rule, "path": first.path, "problems": found}
    return VerifyError(where, f"{first.path}: {first.message}", inputs=inputs, legal=first.legal, facts=facts)


def _repeated(values: list[object]) -> list[object]:
    return [value for value, count in Counter(values).items() if count > 1]


def _spec(primitive: Primitive) -> OperationSpec | None:
    return operation(primitive.operation) if primitive.operation in operations() else None


# ── form ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

_rule(
    "program.types", "a program is made of the values and types that tileweave.teir.ir.program states, lists as tuples"
)(form.types)
_rule("program.names", "names and identifiers are one line of text: no control characters, no halves of surrogates")(
    form.names
)
_rule("path.depth", f"an invocation has at most {form.DEPTH_LIMIT} axes, iterated and consumed together (own choice)")(
    form.depth
)


# ── profile and tensors ───────────────────────────────────────────────────────────────────────────────────────────────


@_rule("program.profile", "the profile is document or tileweave")
def _profile(program: Program) -> Iterator[tuple[str, str]]:
    if program.profile not in ("document", "tileweave"):
        yield "program", f"its profile is {program.profile!r}"


@_rule("tensor.unique", "every tensor name is unique")
def _tensor_unique(program: Program) -> Iterator[tuple[str, str]]:
    for name in _repeated([spec.name for spec in program.tensors]):
        yield f"tensor {name!r}", "its name is used more than once"


@_rule(
    "tensor.dtype",
    f"an element type is one of {', '.join(DTYPES)}; of what contractions alone read also one of {', '.join(FACTORS)}",
)
def _tensor_dtype(program: Program) -> Iterator[tuple[str, str]]:
    for spec in program.tensors:
        readers = {p.operation for p in program.primitives if spec.name in p.operands}
        factor = spec.dtype in FACTORS and spec.role == "in" and readers <= {"Contraction"}
        if spec.dtype not in DTYPES and not factor:
            yield f"tensor {spec.name!r}", f"its element type is {spec.dtype!r}"


@_rule(
    "tensor.role", "a role is in, out, inout or scratch; scratch tensors, and only those, have a positive size in bytes"
)
def _tensor_role(program: Program) -> Iterator[tuple[str, str]]:
    for spec in program.tensors:
        if spec.role not in ("in", "out", "inout", "scratch"):
            yield f"tensor {spec.name!r}", f"its role is {spec.role!r}"
        elif (
            not is_integer(spec.size_bytes) or (spec.size_bytes > 0) != (spec.role == "scratch") or spec.size_bytes < 0
        ):
            yield f"tensor {spec.name!r}", f"its role is {spec.role} and its size {shown(spec.size_bytes)} bytes"


@_rule("tensor.shape", "a shape has positive integers, and scratch tensors have none")
def _tensor_shape(program: Program) -> Iterator[tuple[str, str]]:
    for spec in program.tensors:
        if spec.shape is None:
            continue
        if spec.role == "scratch":
            yield f"tensor {spec.name!r}", f"it is scratch and has the shape {shown_tuple(spec.shape)}"
        elif not isinstance(spec.shape, tuple) or not all(is_integer(n) and n > 0 for n in spec.shape):
            yield f"tensor {spec.name!r}", f"its shape is {shown_tuple(spec.shape)}"


@_rule("tensor.by-position", "tensors are in0, in1, .. and then out; none is scratch or states a shape", "document")
def _tensor_by_position(program: Program) -> Iterator[tuple[str, str]]:
    names = [spec.name for spec in program.tensors]
    expected = [f"in{k}" for k in range(len(names) - 1)] + ["out"]
    if names and names != expected:
        yield "tensors", f"they are named {', '.join(map(str, names))}"
    for spec in program.tensors:
        if spec.role == "scratch":
            yield f"tensor {spec.name!r}", "it is scratch"
        elif spec.shape is not None:
            yield f"tensor {spec.name!r}", "it states a shape"


# ── axes ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@_rule("axis.unique", "every axis identifier is unique")
def _axis_unique(program: Program) -> Iterator[tuple[str, str]]:
    for id in _repeated([axis.id for axis in program.axes]):
        yield f"axis {id!r}", "its identifier is used more than once"


@_rule("axis.extent-positive", "every axis extent is a positive integer")
def _axis_extent(program: Program) -> Iterator[tuple[str, str]]:
    for axis in program.axes:
        if not is_integer(axis.extent) or axis.extent < 1:
            yield f"axis {axis.id!r}", f"its extent is {shown(axis.extent)}"


@_rule("axis.one-per-tensor", "every axis has one integer stride and one integer offset per tensor, in bytes")
def _axis_one_per_tensor(program: Program) -> Iterator[tuple[str, str]]:
    count = len(program.tensors)
    for axis in program.axes:
        for what, values in (("strides", axis.strides), ("offsets", axis.offsets)):
            if len(values) != count:
                yield f"axis {axis.id!r}", f"it has {len(values)} {what} for {count} tensors"
            elif not all(map(is_integer, values)):
                yield f"axis {axis.id!r}", f"its {what} are {shown_tuple(values)}"


@_rule(
    "axis.strides-not-negative", "strides are non-negative byte counts; the tileweave profile allows others", "document"
)
def _axis_strides(program: Program) -> Iterator[tuple[str, str]]:
    for axis in program.axes:
        if any(is_integer(stride) and stride < 0 for stride in axis.strides):
            yield f"axis {axis.id!r}", f"its strides are {shown_tuple(axis.strides)}"


@_rule("axis.fits-64-bits", "extents, and address distances in bytes, fit in signed 64-bit integers")
def _axis_fits(program: Program) -> Iterator[tuple[str, str]]:
    reach = [0] * len(program.tensors)
    for axis in program.axes:
        if not is_integer(axis.extent) or len(axis.strides) != len(reach) or len(axis.offsets) != len(reach):
            continue
        if axis.extent >= ADDRESS_LIMIT:
            yield f"axis {axis.id!r}", f"its extent is {shown(axis.extent)}"
        for k, (stride, offset) in enumerate(zip(axis.strides, axis.offsets, strict=True)):
            if is_integer(stride) and is_integer(offset):
                reach[k] += abs(offset) + abs(stride) * max(axis.extent - 1, 0)
    for spec, total in zip(program.tensors, reach, strict=True):
        if total >= ADDRESS_LIMIT:
            yield f"tensor {spec.name!r}", f"its axes reach {shown(total)} bytes"


# ── schedule ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@_rule("schedule.unique", "every node identifier is unique across iterations and invocations")
def _schedule_unique(program: Program) -> Iterator[tuple[str, str]]:
    for id in _repeated([node.id for node in program.nodes]):
        yield f"node {id!r}", "its identifier is used more than once"


@_rule("schedule.roots-exist", "every root refers to an existing node")
def _roots_exist(program: Program) -> Iterator[tuple[str, str]]:
    known = nodes_by_id(program)
    for root in program.roots:
        if root not in known:
            yield f"root {root!r}", "there is no such node"


@_rule("schedule.children-exist", "every child refers to an existing node")
def _children_exist(program: Program) -> Iterator[tuple[str, str]]:
    known = nodes_by_id(program)
    for node in program.nodes:
        for child in node.children if isinstance(node, Iteration) else ():
            if child not in known:
                yield f"node {node.id!r}", f"there is no node {child!r}, which it names as a child"


@_rule("schedule.one-parent", "every node that is not a root appears in exactly one children list, once")
def _one_parent(program: Program) -> Iterator[tuple[str, str]]:
    uses = Counter(child for node in program.nodes if isinstance(node, Iteration) for child in node.children)
    roots = set(program.roots)
    for id in nodes_by_id(program):
        if id not in roots and uses[id] != 1:
            yield f"node {id!r}", f"it is no root and appears {uses[id]} times in children lists"


@_rule("schedule.roots-once", "every root appears in roots once and in no children list")
def _roots_once(program: Program) -> Iterator[tuple[str, str]]:
    for root in _repeated(list(program.roots)):
        yield f"root {root!r}", "it appears in roots more than once"
    roots = set(program.roots)
    for node in program.nodes:
        for child in node.children if isinstance(node, Iteration) else ():
            if child in roots:
                yield f"root {child!r}", f"it is also a child of node {node.id!r}"


@_rule("schedule.acyclic", "no node appears among its own descendants")
def _acyclic(program: Program) -> Iterator[tuple[str, str]]:
    nodes = nodes_by_id(program)
    children = {id: node.children if isinstance(node, Iteration) else () for id, node in nodes.items()}
    done: set[object] = set()
    for start in nodes:
        trail: list[object] = []
        stack = [(start, False)]
        while stack:
            id, leaving = stack.pop()
            if leaving:
                trail.pop()
                done.add(id)
                continue
            if id in trail:
                yield (
                    f"node {id!r}",
                    "it is its own descendant: " + " > ".join(map(str, [*trail[trail.index(id) :], id])),
                )
                continue
            if id in done or id not in children:
                continue
            trail.append(id)
            stack.append((id, True))
            stack += [(child, False) for child in reversed(children[id])]


@_rule("iteration.axis-exists", "an iteration's axis refers to an existing axis")
def _iteration_axis(program: Program) -> Iterator[tuple[str, str]]:
    known = axes_by_id(program)
    for node in program.nodes:
        if isinstance(node, Iteration) and node.axis not in known:
            yield f"node {node.id!r}", f"there is no axis {node.axis!r}, which it iterates"


@_rule(
    "iteration.policy", "an iteration's policy is sequential or parallel; the tileweave profile allows registered ones"
)
def _iteration_policy(program: Program) -> Iterator[tuple[str, str]]:
    for node in program.nodes:
        known = DOCUMENT_POLICIES if program.profile == "document" else policies()
        if isinstance(node, Iteration) and node.policy not in known:
            yield f"node {node.id!r}", f"its policy is {node.policy!r}"


@_rule("iteration.has-children", "an iteration's children list is not empty")
def _iteration_children(program: Program) -> Iterator[tuple[str, str]]:
    for node in program.nodes:
        if isinstance(node, Iteration) and not node.children:
            yield f"node {node.id!r}", "it has no children"


@_rule("invocation.primitive-exists", "an invocation's primitive refers to an existing primitive")
def _invocation_primitive(program: Program) -> Iterator[tuple[str, str]]:
    known = primitives_by_id(program)
    for node in program.nodes:
        if isinstance(node, Invocation) and node.primitive not in known:
            yield f"node {node.id!r}", f"there is no primitive {node.primitive!r}, which it invokes"


@_rule("invocation.no-children", "an invocation has no children")
def _invocation_children(program: Program) -> Iterator[tuple[str, str]]:
    for node in program.nodes:
        if isinstance(node, Invocation) and hasattr(node, "children"):
            yield f"node {node.id!r}", "it is an invocation and has children"


@_rule("guard.terms", "a guard is a conjunction of first(axis) and last(axis) terms")
def _guard_terms(program: Program) -> Iterator[tuple[str, str]]:
    for node in program.nodes:
        for term in node.guard:
            if type(term) not in (First, Last):
                yield f"node {node.id!r}", f"its guard holds {term!r}"


@_rule("guard.axis-iterated-by-ancestor", "every axis of a guard is iterated by an ancestor of the guarded node")
def _guard_ancestor(program: Program) -> Iterator[tuple[str, str]]:
    for visit in walk(program):
        iterated = [node.axis for node in visit.path]
        for term in visit.node.guard:
            if isinstance(term, First | Last) and term.axis not in iterated:
                yield show_path(visit), f"no ancestor iterates axis {term.axis!r}, which its guard names"


@_rule("path.axis-once", "an axis is iterated at most once on a path (own choice)")
def _path_axis_once(program: Program) -> Iterator[tuple[str, str]]:
    for visit in walk(program):
        node = visit.node
        if isinstance(node, Iteration) and any(node.axis == above.axis for above in visit.path):
            yield show_path(visit), f"an ancestor iterates axis {node.axis!r} already"


@_rule(
    "path.iterated-or-consumed", "a primitive consumes no axis that an ancestor of its invocation iterates (own choice)"
)
def _path_consumed(program: Program) -> Iterator[tuple[str, str]]:
    known = primitives_by_id(program)
    for visit in walk(program):
        if isinstance(visit.node, Invocation) and visit.node.primitive in known:
            primitive = known[visit.node.primitive]
            consumed = {axis for _, ids in primitive.axes for axis in ids}
            for node in visit.path:
                if node.axis in consumed:
                    message = f"axis {node.axis!r} is iterated above it and consumed by primitive {primitive.id!r}"
                    yield show_path(visit), message


# ── primitives ────────────────────────────────────────────────────────────────────────────────────────────────────────


@_rule("primitive.unique", "every primitive identifier is unique")
def _primitive_unique(program: Program) -> Iterator[tuple[str, str]]:
    for id in _repeated([primitive.id for primitive in program.primitives]):
        yield f"primitive {id!r}", "its identifier is used more than once"


@_rule(
    "primitive.operation-known",
    "an operation is a registered one; the document profile has " + ", ".join(DOCUMENT_OPERATIONS),
)
def _primitive_operation(program: Program) -> Iterator[tuple[str, str]]:
    allowed = DOCUMENT_OPERATIONS if program.profile == "document" else operations()
    for primitive in program.primitives:
        if primitive.operation not in allowed:
            yield f"primitive {primitive.id!r}", f"its operation is {primitive.operation!r}"


@_rule("primitive.roles", "a primitive lists every role of its operation once, and no other; the lists may be empty")
def _primitive_roles(program: Program) -> Iterator[tuple[str, str]]:
    for primitive in program.primitives:
        spec = _spec(primitive)
        roles = [role for role, _ in primitive.axes]
        if spec is not None and sorted(map(str, roles)) != sorted(spec.roles):
            yield (
                f"primitive {primitive.id!r}",
                f"{spec.name} has roles {', '.join(spec.roles)}; it lists {', '.join(roles)}",
            )


@_rule("primitive.axes-exist", "every axis in a role refers to an existing axis")
def _primitive_axes(program: Program) -> Iterator[tuple[str, str]]:
    known = axes_by_id(program)
    for primitive in program.primitives:
        for role, ids in primitive.axes:
            for id in ids:
                if id not in known:
                    yield f"primitive {primitive.id!r}", f"there is no axis {id!r}, which its role {role} names"


@_rule("primitive.axis-in-one-role", "a primitive consumes an axis once, in one role (own choice)")
def _primitive_axis_once(program: Program) -> Iterator[tuple[str, str]]:
    for primitive in program.primitives:
        for id in _repeated([id for _, ids in primitive.axes for id in ids]):
            yield f"primitive {primitive.id!r}", f"it consumes axis {id!r} more than once"


@_rule(
    "primitive.operands-by-position",
    "the document profile binds operands by position, and has the tensors they name",
    "document",
)
def _operands_by_position(program: Program) -> Iterator[tuple[str, str]]:
    names = {spec.name for spec in program.tensors}
    for primitive in program.primitives:
        if primitive.operands:
            yield f"primitive {primitive.id!r}", f"it names the operands {', '.join(map(str, primitive.operands))}"
        spec = _spec(primitive)
        missing = [name for name in spec.document_operands if name not in names] if spec else []
        if missing and program.tensors:
            yield f"primitive {primitive.id!r}", f"{primitive.operation} needs the tensor {missing[0]}"


@_rule(
    "primitive.operands", "a primitive names the tensors of its operation, inputs first and output last", "tileweave"
)
def _operands(program: Program) -> Iterator[tuple[str, str]]:
    names = {spec.name for spec in program.tensors}
    for primitive in program.primitives:
        spec = _spec(primitive)
        for name in primitive.operands:
            if name not in names:
                yield f"primitive {primitive.id!r}", f"there is no tensor {name!r}, which it names as an operand"
        if spec is not None and len(primitive.operands) != spec.inputs + 1:
            message = f"{spec.name} has {spec.inputs + 1} operands; it names {len(primitive.operands)}"
            yield f"primitive {primitive.id!r}", message


@_rule("primitive.writes", "a primitive never writes a tensor whose role is in")
def _primitive_writes(program: Program) -> Iterator[tuple[str, str]]:
    roles = {spec.name: spec.role for spec in program.tensors}
    for primitive in program.primitives:
        operands = operands_of(primitive, program) if _spec(primitive) else ()
        if operands and roles.get(operands[-1]) == "in":
            yield f"primitive {primitive.id!r}", f"it writes tensor {operands[-1]!r}, whose role is in"


@_rule("primitive.data-type", "data_type, where metadata give it, is the element type of every operand")
def _primitive_data_type(program: Program) -> Iterator[tuple[str, str]]:
    dtypes = {spec.name: spec.dtype for spec in program.tensors}
    for primitive in program.primitives:
        stated = dict(primitive.metadata).get("data_type")
        operands = operands_of(primitive, program) if stated is not None and _spec(primitive) else ()
        for name in operands:
            if name in dtypes and dtypes[name] != stated:
                message = f"its data_type is {stated} and tensor {name!r} holds {dtypes[name]}"
                yield f"primitive {primitive.id!r}", message


@_rule(
    "primitive.dtypes",
    "element types fit the operation: ReLU keeps the type, Copy does not turn floating point into integers, "
    "Contraction accumulates in the widest type of its operands and in FP32 at least; extensions say their own",
    "tileweave",
)
def _primitive_dtypes(program: Program) -> Iterator[tuple[str, str]]:
    dtypes = {spec.name: spec.dtype for spec in program.tensors}
    for primitive in program.primitives:
        spec = _spec(primitive)
        names = tuple(dtypes.get(name, "") for name in primitive.operands)
        if spec is None or len(names) != spec.inputs + 1 or not {*names} <= {*DTYPES, *FACTORS}:
            continue
        why = spec.dtypes(names)
        if why:
            yield f"primitive {primitive.id!r}", why


@_rule("primitive.parameters", "metadata hold a finite number for every parameter; an integer where the output is one")
def _primitive_parameters(program: Program) -> Iterator[tuple[str, str]]:
    dtypes = {spec.name: spec.dtype for spec in program.tensors}
    for primitive in program.primitives:
        spec, metadata = _spec(primitive), dict(primitive.metadata)
        for key in spec.parameters if spec else ():
            value = metadata.get(key)
            out = dtypes.get(primitive.operands[-1], "") if primitive.operands else ""
            if isinstance(value, bool) or not isinstance(value, int | float) or not is_finite(value):
                yield f"primitive {primitive.id!r}", f"its {key} is {value!r}"
            elif out.startswith(("INT", "UINT")) and (value != int(value) or not _holds(out, int(value))):
                yield f"primitive {primitive.id!r}", f"its {key} is {value!r}, and {out} does not hold it"


def _holds(integer: str, value: int) -> bool:
    bits = 8 * DTYPES[integer][0]
    return 0 <= value < 1 << bits if integer[0] == "U" else -1 << (bits - 1) <= value < 1 << (bits - 1)


def _output_strides(
    program: Program, roles: Callable[[OperationSpec], list[str]]
) -> Iterator[tuple[Primitive, str, int, int]]:
    """Axis, extent and stride on the output, of accumulating primitives, for the chosen roles."""
    axes = axes_by_id(program)
    position = {spec.name: k for k, spec in enumerate(program.tensors)}
    for primitive in program.primitives:
        spec = _spec(primitive)
        if spec is None or not spec.contracted or not primitive.operands or primitive.operands[-1] not in position:
            continue
        k = position[primitive.operands[-1]]
        for role in roles(spec):
            for id in primitive.role(role):
                if id in axes and k < len(axes[id].strides):
                    yield primitive, f"{role} axis {id!r}", axes[id].extent, axes[id].strides[k]


@_rule("contraction.contracted-axes", "contracted axes of several steps have stride zero on the output", "tileweave")
def _contracted_axes(program: Program) -> Iterator[tuple[str, str]]:
    for primitive, axis, extent, stride in _output_strides(program, lambda spec: list(spec.contracted)):
        if extent != 1 and stride != 0:
            yield f"primitive {primitive.id!r}", f"its {axis} has stride {stride} on the output"


@_rule("contraction.free-axes", "free axes of several steps have a stride other than zero on the output", "tileweave")
def _free_axes(program: Program) -> Iterator[tuple[str, str]]:
    found = _output_strides(program, lambda spec: [role for role in spec.roles if role not in spec.contracted])
    for primitive, axis, extent, stride in found:
        if extent != 1 and stride == 0:
            yield f"primitive {primitive.id!r}", f"its {axis} stands still on the output"


RULES: tuple[Rule, ...] = tuple(_RULES)
"""Every rule, in the order in which problems are reported."""
