"""Programs one after the other, as one program.

Source: own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tileweave.errors import VerifyError
from tileweave.teir.ir.primitives import operands_of
from tileweave.teir.ir.program import Axis, First, Guard, Id, Iteration, Last, Node, Primitive, Program, TensorSpec


def sequence(
    parts: Sequence[tuple[Program, Mapping[str, str]]], tensors: Sequence[TensorSpec], name: str = "sequence"
) -> Program:
    """The program that runs its parts in order, on common tensors.

    Args:
        parts: well-formed programs, each with the common name of every tensor of its own. Identifiers that an earlier
            part has get the part's number behind a dot.
        tensors: the common tensors; those that several parts bind have the element type that each of them expects.
        name: of the program.

    Raises:
        VerifyError: a part's tensor is bound to none of the common ones, to one of another type, or two of its tensors
            to the same one; rule ``sequence.bound``.

    Example:
        >>> from tileweave.layout import strided
        >>> from tileweave.teir import Operand, emit_relu, emit_zero
        >>> row = Operand(strided((4,), (1,)), "FP32")
        >>> both = sequence(
        ...     [(emit_zero(row), {"out": "x"}), (emit_relu(row), {"out": "x"})], (TensorSpec("x", "FP32", "out"),)
        ... )
        >>> [node.id for node in both.nodes]
        ['zero', 'relu']
    """
    specs = {spec.name: spec for spec in tensors}
    axes: list[Axis] = []
    nodes: list[Node] = []
    roots: list[Id] = []
    primitives: list[Primitive] = []
    for number, (part, names) in enumerate(parts):
        _check(part, names, specs, number)
        axis_ids = _renamed([axis.id for axis in part.axes], [axis.id for axis in axes], number)
        node_ids = _renamed([node.id for node in part.nodes], [node.id for node in nodes], number)
        primitive_ids = _renamed([p.id for p in part.primitives], [p.id for p in primitives], number)
        place = [next((j for j, own in enumerate(part.tensors) if names[own.name] == n), None) for n in specs]

        def spread(values: Sequence[int], place: Sequence[int | None] = place) -> tuple[int, ...]:
            return tuple(0 if j is None else values[j] for j in place)

        def guard(terms: Guard, ids: Mapping[Id, Id] = axis_ids) -> Guard:
            return tuple(type(term)(ids[term.axis]) for term in terms if isinstance(term, First | Last))

        axes += [Axis(axis_ids[a.id], a.extent, spread(a.strides), spread(a.offsets)) for a in part.axes]
        for node in part.nodes:
            if isinstance(node, Iteration):
                children = tuple(node_ids[child] for child in node.children)
                axis_id = axis_ids[node.axis]
                nodes.append(Iteration(node_ids[node.id], axis_id, children, node.policy, guard(node.guard)))
            else:
                changed = replace(node, id=node_ids[node.id], primitive=primitive_ids[node.primitive])
                nodes.append(replace(changed, guard=guard(node.guard)))
        for primitive in part.primitives:
            roles = tuple((role, tuple(axis_ids[id] for id in ids)) for role, ids in primitive.axes)
            operands = tuple(names[operand] for operand in operands_of(primitive, part))
            primitives.append(replace(primitive, id=primitive_ids[primitive.id], axes=roles, operands=operands))
        roots += [node_ids[root] for root in part.roots]
    return Program(tuple(tensors), tuple(axes), tuple(roots), tuple(nodes), tuple(primitives), "tileweave", name)


def _check(part: Program, names: Mapping[str, str], specs: Mapping[str, TensorSpec], number: int) -> None:
    used: set[str] = set()
    for own in part.tensors:
        spec = specs.get(names.get(own.name, ""))
        if spec is None:
            problem = f"it is bound to {names.get(own.name)!r}, which is no common tensor"
        elif spec.dtype != own.dtype:
            problem = f"it holds {own.dtype} and is bound to {spec.name!r}, which holds {spec.dtype}"
        elif spec.name in used:
            problem = f"it is bound to {spec.name!r}, as another tensor of this part is"
        else:
            used.add(spec.name)
            continue
        raise VerifyError(
            "sequence(parts, tensors)",
            f"part {number} ({part.name}), tensor {own.name!r}: {problem}",
            legal=f"each to one of {', '.join(specs)}",
            facts={"rule": "sequence.bound", "path": f"tensor {own.name!r}"},
        )


def _renamed(ids: Sequence[Id], taken: Sequence[Id], number: int) -> dict[Id, Id]:
    """New identifiers where old ones are taken."""
    known = set(taken)
    result: dict[Id, Id] = {}
    for id in ids:
        new: Id = id
        while new in known or (new != id and new in ids):
            new = f"{new}.{number}"
        result[id] = new
        known.add(new)
    return result
