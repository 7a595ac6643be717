"""From the merged form back to a schedule: the program that is executed, as the interpreter runs it.

Source: own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tileweave.errors import ScheduleError
from tileweave.teir.ir.dtypes import width_bytes
from tileweave.teir.ir.extensions import NEUTRAL
from tileweave.teir.ir.primitives import operation
from tileweave.teir.ir.program import Axis, Guard, Id, Invocation, Iteration, Node, Primitive, Program, TensorSpec
from tileweave.teir.merged.form import MONOIDS, Merged, MergedOp, Mode, Stage, Step
from tileweave.teir.merged.merge import start_of


def unmerged(form: Merged) -> Program:
    """The schedule that a merged form is, in the ``tileweave`` profile.

    A Contraction becomes a Zero or a Copy where it stores, itself, and a ReLU where it clips. Several stages become
    loops around one element of each. A result that is never stored is one element of scratch.

    Raises:
        ScheduleError: stages of one chain walk one tensor in different ways, which no axis does.

    Example:
        >>> from tileweave.teir import examples
        >>> from tileweave.teir.merged.merge import merged
        >>> program = unmerged(merged(examples.contraction_scalar(dict.fromkeys("pqrstu", 4))))
        >>> program.roots
        ('zero', 'contraction')
    """
    b = _Builder(form, list(form.program.tensors))
    roots = tuple(id for step in form.body for id in b.step(step))
    count = len(b.tensors)
    axes = tuple(
        Axis(
            a.id, a.extent, (*a.strides, *[0] * (count - len(a.strides))), (*a.offsets, *[0] * (count - len(a.offsets)))
        )
        for a in b.axes
    )
    name = f"{form.program.name} merged"
    return Program(tuple(b.tensors), axes, roots, tuple(b.nodes), tuple(b.primitives), "tileweave", name)


@dataclass
class _Builder:
    """What the program consists of so far."""

    form: Merged
    tensors: list[TensorSpec]
    axes: list[Axis] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    primitives: list[Primitive] = field(default_factory=list)

    def fresh(self, name: str) -> str:
        """The name, or with a number where it is taken by a node or an axis."""
        taken = {str(one.id) for one in (*self.nodes, *self.axes, *self.primitives)}
        taken |= {str(axis.id) for axis in self.form.program.axes}
        return next(n for n in (name, *(f"{name}.{k}" for k in range(2, len(taken) + 3))) if n not in taken)

    def axis(self, extent: int, strides: dict[int, int], offsets: dict[int, int] | None = None) -> Id:
        """A new axis that moves these tensors."""
        count = len(self.tensors)
        moved = tuple(strides.get(j, 0) for j in range(count)), tuple((offsets or {}).get(j, 0) for j in range(count))
        self.axes.append(Axis(self.fresh("x"), extent, *moved))
        return self.axes[-1].id

    def step(self, step: Step) -> list[Id]:
        """The nodes of a loop or an operation, in order of execution."""
        if isinstance(step, MergedOp):
            return self.operation(step)
        if step.axis not in self.axes:
            self.axes.append(step.axis)
        children = tuple(id for below in step.body for id in self.step(below))
        name = self.fresh(f"loop_{step.axis.id}")
        self.nodes.append(
            Iteration(name, step.axis.id, children, "parallel" if step.parallel else "sequential", step.guard)
        )
        return [name]

    def operation(self, op: MergedOp) -> list[Id]:
        if op.kind != "Contraction":
            return self.chain(op)
        if op.operands[2] in op.operands[:2]:  # the order of the steps is the meaning
            return self.nest(op, (Stage("Contraction", (0, 1), 2),))
        found = []
        if op.init is not None:
            guard = tuple(dict.fromkeys((*op.guard, *op.init)))
            if len(op.operands) > 3:
                start = start_of(op)
                found.append(self.invoke("Copy", start, (0, 1), _roles("Copy", start.modes, 1), guard))
            else:
                moving = [mode for mode in op.modes if mode.strides[2]]
                found.append(self.invoke("Zero", op, (2,), _roles("Zero", moving, 2), guard))
        found.append(self.invoke("Contraction", op, (0, 1, 2), _roles("Contraction", op.modes, 2), op.guard))
        if op.relu is not None:
            moving = [mode for mode in op.modes if mode.strides[2]]
            guard = tuple(dict.fromkeys((*op.guard, *op.relu)))
            found.append(self.invoke("ReLU", op, (2, 2), _roles("ReLU", moving, 2), guard))
        return found

    def chain(self, op: MergedOp) -> list[Id]:
        """Neutral elements of the reductions that start afresh, then the stages: at once where there is only one."""
        found = []
        for stage in op.stages:
            if stage.fresh is not None:
                guard = tuple(dict.fromkeys((*op.guard, *stage.fresh)))
                kind, o = NEUTRAL[MONOIDS[stage.kind]], stage.output
                moving = [mode for mode in op.modes if mode.strides[o]]
                found.append(self.invoke(kind, op, (o,), _roles(kind, moving, o), guard))
        if len(op.stages) == 1 and op.stages[0].kind not in MONOIDS and not op.dropped:
            (stage,) = op.stages
            modes = {"M": list(op.modes)}
            return [*found, self.invoke(stage.kind, op, (*stage.inputs, stage.output), modes, op.guard, stage)]
        return [*found, *self.nest(op, op.stages)]

    def nest(self, op: MergedOp, stages: Sequence[Stage]) -> list[Id]:
        """Loops over all modes around one element of each stage."""
        scratch: dict[int, int] = {}
        for o in sorted(op.dropped):
            spec = self.form.program.tensors[op.operands[o]]
            scratch[o] = len(self.tensors)
            self.tensors.append(TensorSpec(self.unused(spec.name), spec.dtype, "scratch", width_bytes(spec.dtype)))
        loops = []
        for mode in op.modes:
            strides: dict[int, int] = {}
            for o, j in enumerate(op.operands):
                if o not in op.dropped and strides.setdefault(j, mode.strides[o]) != mode.strides[o]:
                    name = self.form.program.tensors[j].name
                    raise ScheduleError(
                        "unmerged(form)",
                        f"a chain walks {name!r} by {strides[j]} and by {mode.strides[o]} bytes along one axis",
                        legal="one stride per tensor and axis",
                    )
            loops.append(self.axis(mode.extent, strides))
        inner = [self.invoke(s.kind, op, (*s.inputs, s.output), {}, (), s, scratch) for s in stages]
        for id in reversed(loops):
            name = self.fresh(f"loop_{id}")
            self.nodes.append(Iteration(name, id, tuple(inner), "sequential", ()))
            inner = [name]
        for k, node in enumerate(self.nodes):
            if node.id in inner:
                self.nodes[k] = replace(node, guard=op.guard)
        return inner

    def unused(self, name: str) -> str:
        taken = {spec.name for spec in self.tensors}
        return next(n for n in (f"{name}_element{k}" for k in range(len(taken) + 1)) if n not in taken)

    def invoke(
        self,
        kind: str,
        op: MergedOp,
        numbers: Sequence[int],
        modes: dict[str, list[Mode]],
        guard: Guard = (),
        stage: Stage | None = None,
        scratch: dict[int, int] | None = None,
    ) -> Id:
        """An invocation of one operation on some operands, with their modes by role."""
        spec, instead = operation(kind), scratch or {}
        tensors = [instead.get(o, op.operands[o]) for o in numbers]
        roles: dict[str, list[Id]] = {role: [] for role in spec.roles}
        for role, group in modes.items():
            for mode in group:
                strides = {j: mode.strides[o] for j, o in zip(tensors, numbers, strict=True) if o not in instead}
                roles[role].append(self.axis(mode.extent, strides))
        offsets = {j: op.offsets[o] for j, o in zip(tensors, numbers, strict=True) if o not in instead}
        if any(offsets.values()):
            roles["M"].insert(0, self.axis(1, {}, offsets))
        name = self.fresh(kind.lower())
        metadata = (("value", stage.number),) if stage is not None and kind == "Fill" else ()
        names = tuple(self.tensors[j].name for j in tensors)
        axes = tuple((role, tuple(ids)) for role, ids in roles.items())
        self.primitives.append(Primitive(f"{name}_primitive", kind, axes, names, metadata))
        self.nodes.append(Invocation(name, f"{name}_primitive", guard))
        return name


def _roles(kind: str, modes: Sequence[Mode], out: int) -> dict[str, list[Mode]]:
    """Modes by role: K where the output stands still, N where in1 moves, else M."""
    roles: dict[str, list[Mode]] = {"M": [], "N": [], "K": []} if kind == "Contraction" else {"M": [], "N": []}
    for mode in modes:
        across = mode.strides[1] if kind == "Contraction" else 0
        role = "K" if kind == "Contraction" and not mode.strides[out] else "N" if across else "M"
        roles[role].append(mode)
    return roles
