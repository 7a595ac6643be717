"""Models of any extent: symbolic dimensions, bound by the arrays of a call.

Shapes in a graph are numbers, so a model with symbolic dimensions is a function from their extents to a `Model`. What
it makes for an extent is kept with its plan: a further call with known extents looks two dictionaries up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from tileweave.backends.base import registered
from tileweave.errors import GraphError
from tileweave.frontends.model import Model
from tileweave.graph import Hole, Source, Tensor
from tileweave.graph.ir.dtypes import element_type
from tileweave.kept import lock_of_process
from tileweave.lower.again.form import GraphForm, form_of
from tileweave.planner import Machines, Plan
from tileweave.planner.machine import machines as make_machines
from tileweave.planner.simulate import costed
from tileweave.runtime.api import run, source
from tileweave.runtime.direct import Found, Watch
from tileweave.runtime.further.known import KnownForms
from tileweave.runtime.planned import bound_like, whole
from tileweave.runtime.prepare import keeping
from tileweave.runtime.session import PLAIN, current_session
from tileweave.words import size_text

Array = np.ndarray[Any, Any]
Made = TypeVar("Made")
KEEP_BINDINGS = 32
"""How many bindings a model keeps, with their plans and prepared memory; the one used longest ago goes first."""
MOST_BYTES = 1 << 32
"""Of the memory that bindings without plans hold, and of the constants of a model."""


def _brought(source: Source) -> bool:
    """Whether a source is an input of a model."""
    return isinstance(source.data, Hole)


@dataclass(frozen=True, slots=True)
class Dim:
    """A symbolic dimension: a name, and the extents that it may have; see `dim`."""

    name: str
    least: int = 0
    most: int | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def range(self) -> str:
        """The extents, as text."""
        return f"{self.least}..{'' if self.most is None else self.most}"


def dim(name: str, least: int = 1, most: int | None = None) -> Dim:
    """A symbolic dimension of `program` and of ``tileweave.load(.., bind={..})``.

    Args:
        name: equal names are one dimension.
        least: the smallest extent.
        most: the largest one; None: no bound.

    Raises:
        GraphError: the bounds are no extents, or in the wrong order.

    Example:
        >>> dim("batch", 1, 512)
        Dim(name='batch', least=1, most=512)
    """
    bounds = (least,) if most is None else (least, most)
    fits = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 0 for n in bounds)
    if not isinstance(name, str) or not name or not fits or (most is not None and most < least):
        where = f"dim({name!r}, {least!r}, {most!r})"
        raise GraphError(where, "this is no symbolic dimension", legal="a name, and bounds such as 1, 512")
    return Dim(name, int(least), None if most is None else int(most))


@dataclass(frozen=True, slots=True)
class SymbolicType:
    """Element type and shape of an input; extents are numbers or symbolic dimensions."""

    shape: tuple[int | Dim, ...]
    dtype: np.dtype[Any]

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"

    def at(self, extents: Mapping[str, int]) -> tuple[int, ...]:
        """The shape for extents by name."""
        return tuple(extents[n.name] if isinstance(n, Dim) else n for n in self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class SymbolicModel:
    """A model whose inputs have symbolic dimensions: what `program` and `tileweave.load` return for those.

    Args:
        name: of the model.
        inputs: name -> type, in the model's order.
        make: extents by name -> the model for them.

    Calling it takes the extents from the arrays: ``model(image=array)`` or ``model(array)``.
    """

    name: str
    inputs: Mapping[str, SymbolicType]
    make: Callable[[Mapping[str, int]], Model]
    made: OrderedDict[tuple[int, ...], Model] = field(default_factory=OrderedDict, repr=False)
    plans: OrderedDict[tuple[int, ...], Plan] = field(default_factory=OrderedDict, init=False, repr=False)
    known: KnownForms = field(
        default_factory=lambda: KnownForms(_brought, KEEP_BINDINGS, MOST_BYTES, apart=False), init=False, repr=False
    )
    forms: OrderedDict[tuple[int, ...], GraphForm | None] = field(default_factory=OrderedDict, init=False, repr=False)

    @property
    def dims(self) -> dict[str, Dim]:
        """The symbolic dimensions by name, in the order of the inputs."""
        return {n.name: n for kind in self.inputs.values() for n in kind.shape if isinstance(n, Dim)}

    def at(self, **extents: int) -> Model:
        """The model for these extents; it is kept.

        Raises:
            GraphError: an extent is missing, unknown or out of its bounds, or the model cannot have it.
        """
        key = tuple(self.checked(extents).values())

        @keeping()
        def make() -> Model:
            return self.make(dict(zip(self.dims, key, strict=True)))

        return _kept(self.made, key, make)

    def checked(self, extents: Mapping[str, Any]) -> dict[str, int]:
        """Extents in the order of the dimensions, each within its bounds."""
        where, dims = f"{self.name or 'model'}.at(..)", self.dims
        legal = ", ".join(f"{one.name} in {one.range}" for one in dims.values())
        for name, extent in extents.items():
            if name not in dims:
                raise GraphError(where, f"{name!r} is no dimension", legal=legal)
            one = dims[name]
            whole = isinstance(extent, (int, np.integer)) and not isinstance(extent, bool)
            if not whole or extent < one.least or (one.most is not None and extent > one.most):
                raise GraphError(where, f"{name}={extent!r} is out of bounds", legal=legal)
        missing = [name for name in dims if name not in extents]
        if missing:
            raise GraphError(where, f"dimension {missing[0]!r} has no extent", legal=legal)
        return {name: int(extents[name]) for name in dims}

    def extents(self, *arrays: Any, **named: Any) -> dict[str, int]:
        """The extents that arrays for the inputs have.

        Raises:
            GraphError: a rank does not fit, or a dimension has two extents.
        """
        where = f"{self.name or 'model'}(..)"
        found: dict[str, int] = {}
        given = {**dict(zip(self.inputs, arrays, strict=False)), **named}
        for name, array in given.items():
            kind = self.inputs.get(name)
            shape = np.shape(array)
            if kind is None:
                raise GraphError(where, f"{name!r} is no input", legal=", ".join(self.inputs) or "no inputs")
            if len(shape) != len(kind.shape):
                raise GraphError(where, f"input {name!r} is {kind}, the array has shape {shape}", legal=f"{kind}")
            for extent, n in zip(shape, kind.shape, strict=True):
                if isinstance(n, Dim) and found.setdefault(n.name, extent) != extent:
                    problem = f"dimension {n.name!r} is {found[n.name]} and, in input {name!r}, {extent}"
                    raise GraphError(where, problem, legal="one extent")
        return found

    def whole(self, *arrays: Any, **named: Any) -> dict[str, int]:
        """`extents`, where there is an array for each input."""
        found = self.extents(*arrays, **named)
        missing = [f"{name} {kind}" for name, kind in list(self.inputs.items())[len(arrays) :] if name not in named]
        if missing:
            where, legal = f"{self.name or 'model'}(..)", f"one array for each of {', '.join(self.inputs)}"
            raise GraphError(where, f"no array for {', '.join(missing)}", legal=legal)
        return found

    def plan(self, machines: Any = None) -> SymbolicPlan:
        """Plans for any extents; where all have a bound, the plan at the bounds is made now, so it must fit.

        Raises:
            PlanError: the plan at the bounds does not fit the memory.
        """
        made = SymbolicPlan(self, None if machines is None else make_machines(machines))
        if all(one.most is not None for one in self.dims.values()):
            made.at(**{one.name: one.most or 0 for one in self.dims.values()})
        return made

    def __call__(self, *arrays: Any, **named: Any) -> dict[str, Array]:
        """The outputs' values, by name, for arrays of any extents within the bounds."""
        extents = self.whole(*arrays, **named)
        if current_session() is not PLAIN:
            return self.at(**extents)(*arrays, **named)
        key = tuple([extents[name] for name in self.dims])
        with nullcontext() if key in self.made else keeping():  # once for all that is made of further extents
            model = self.at(**extents)
            bound, known = model.bind(*arrays, **named), self.plans.get(key)
            values = run(known or _AtExtents(SymbolicPlan(self, None, self.plans), extents, model), bind=bound)
        return dict(zip(model.outputs, values if isinstance(values, list) else [values], strict=True))

    def __str__(self) -> str:
        rows = [self.name or "model", *(f"  in   {name}  {kind}" for name, kind in self.inputs.items())]
        return "\n".join(rows + [f"  dim  {one.name}  {one.range}" for one in self.dims.values()])


@dataclass(frozen=True, slots=True, eq=False)
class SymbolicPlan:
    """Plans of a symbolic model on machines, one for each extents; `tileweave.run` takes it with arrays by name.

    A plan is made when its extents are first met and kept as long as the model keeps the binding.
    """

    model: SymbolicModel
    machines: Machines | None
    made: OrderedDict[tuple[int, ...], Plan] = field(default_factory=OrderedDict, repr=False)

    def at(self, **extents: int) -> Plan:
        """The plan for these extents.

        Raises:
            GraphError: as `SymbolicModel.at`.
            PlanError: nothing fits the memory.
        """
        key = tuple(self.model.checked(extents).values())
        made = _kept(self.made, key, lambda: self.model.at(**extents).plan(self.machines))
        if not made.peak_bytes:  # bound by a run, which needs no estimates
            made = costed(made)[0]
            with _LOCK:
                self.made[key] = made
        return made

    def bound(self, bind: Mapping[Any, Any]) -> tuple[Plan, dict[Tensor | str, Any]]:
        """The plan for arrays by the inputs' names, and the arrays by source."""
        extents = self.model.whole(**bind)
        return self.of(extents), self.model.at(**extents).bind(**bind)

    def further(self, bind: Mapping[Any, Any], threads: int, out: Any) -> list[Any] | Watch | None:
        """The results for arrays of extents that differ from known ones in nothing else; where none are known, what
        takes their plan when that is bound."""
        extents = self.model.checked(self.model.whole(**bind))
        model = self.model.at(**extents)
        return _AtExtents(self, extents, model).further(model.bind(**bind), threads, out)

    def of(self, extents: Mapping[str, int]) -> Plan:
        """The plan for extents, perhaps without estimates: the steps of one that differs in nothing else are bound, and
        operations that one machine holds whole are not cut."""

        def plan() -> Plan:
            model = self.model.at(**extents)
            with _LOCK:
                known = list(reversed(self.made.values()))
            bound = (bound_like(model.graph, other) for other in known)
            made = next(filter(None, bound), None) or whole(model.graph, self.machines or make_machines(1))
            return made or model.plan(self.machines)

        return _kept(self.made, tuple(self.model.checked(extents).values()), plan)

    def explain(self) -> str:
        """The plans that were made, the last one used in full."""
        dims = list(self.model.dims)
        rows = []
        for key in list(self.made):
            bound = ", ".join(f"{name}={n}" for name, n in zip(dims, key, strict=True))
            plan = self.at(**dict(zip(dims, key, strict=True)))
            rows.append(f"{bound}: {plan.seconds * 1e3:.3g} ms, {size_text(max(plan.peak_bytes, default=0))}")
        return "\n".join([*rows, *([next(reversed(self.made.values())).explain()] if self.made else ["no plan yet"])])


@dataclass(frozen=True, slots=True, eq=False)
class _AtExtents:
    """A symbolic plan at some extents, which are checked: `tileweave.run` takes it with arrays by source.

    Args:
        plan: for any extents.
        extents: by name.
        model: for these.
    """

    plan: SymbolicPlan
    extents: Mapping[str, int]
    model: Model

    def bound(self, bind: Mapping[Any, Any]) -> tuple[Plan, Mapping[Any, Any]]:
        """The plan, and the arrays."""
        return self.plan.of(self.extents), bind

    def further(self, bind: Mapping[Any, Any], threads: int, out: Any) -> list[Any] | Watch | None:
        """As `SymbolicPlan.further`."""
        whole, where = self.plan.model, self.plan.machines or make_machines(1)
        key = tuple([self.extents[name] for name in whole.dims])
        if key in self.plan.made or len(where) > 1:
            return None
        known, form = whole.known, _kept(whole.forms, key, lambda: form_of(self.model.graph, _brought))
        if form is None:
            return None
        which = form.key, where, threads, registered()
        found = known.found(form, which, key, lambda place: bind[Tensor(form.order[place])], new=out is None)
        if found is None:
            return known.watch(form, which, where.machines[0].memory_bytes, soon=True)
        return known.ran(found, self.model.graph, out) if isinstance(found, Found) else found


_LOCK = lock_of_process()


def _kept(kept: OrderedDict[tuple[int, ...], Made], key: tuple[int, ...], make: Callable[[], Made]) -> Made:
    """What is kept for a key, made where it is missing; two threads may both make it, and one of them keeps it."""
    with _LOCK:
        if key in kept:
            kept.move_to_end(key)
            return kept[key]
    made = make()
    with _LOCK:
        made = kept.setdefault(key, made)
        kept.move_to_end(key)
        while len(kept) > KEEP_BINDINGS:
            kept.popitem(last=False)
    return made


def program(build: Callable[..., Any], /, **inputs: Any) -> SymbolicModel | Model:
    """A tensor program with symbolic dimensions, from a function of its inputs.

    Args:
        build: gets a tensor per input, by name, and returns a tensor, or tensors by name. It is called once for each
            extents that calls have, with shapes that are numbers.
        inputs: name -> ``(shape, element type)``; extents are numbers or `dim` values.

    Returns:
        A model that takes arrays of any extents within the bounds; a plain one where no dimension is symbolic.

    Raises:
        GraphError: an input has no shape and element type.

    Example:
        >>> weights = np.ones((3, 2))
        >>> double = program(lambda x: x @ weights, x=((dim("batch", 1, 8), 3), "float64"))
        >>> [double(np.ones((n, 3)))["out"].shape for n in (1, 5)]
        [(1, 2), (5, 2)]
    """
    name = getattr(build, "__name__", "").strip("<>")
    where = f"program({name}, ..)"
    types = {key: _input_type(where, key, each) for key, each in inputs.items()}

    def make(extents: Mapping[str, int]) -> Model:
        given = {key: source(None, name=key, shape=kind.at(extents), dtype=kind.dtype) for key, kind in types.items()}
        made = build(**given)
        outputs = dict(made) if isinstance(made, Mapping) else {"out": made}
        for key, tensor in outputs.items():
            if not isinstance(tensor, Tensor):
                raise GraphError(where, f"output {key!r} is no tensor", legal="a tensor, or tensors by name")
        return Model(name, given, outputs)

    model = SymbolicModel(name, types, make)
    return model if model.dims else make({})


def _input_type(where: str, name: str, given: Any) -> SymbolicType:
    if isinstance(given, Sequence) and len(given) == 2 and isinstance(given[0], (tuple, list)):
        shape, dtype = given
        if all(isinstance(n, (Dim, int)) and not isinstance(n, bool) for n in shape):
            return SymbolicType(tuple(shape), element_type(where, dtype))
    raise GraphError(where, f"input {name}={given!r} has no type", legal="((dim('batch', 1, 8), 3), 'float32')")
