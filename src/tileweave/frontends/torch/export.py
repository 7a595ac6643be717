"""Exported programs of a PyTorch module, for extents that are open: one of them serves all calls that its guards admit.

``torch.export`` traces a module with symbols for the extents that calls choose, and records what it has assumed about
them: bounds, equalities, the way that each branch went. An extent of 0 or 1 is never a symbol to it, so there is a
program for each choice of those. What no such program admits is exported with numbers.

Source: own; guards and symbols are those of PyTorch's ``ShapeEnv``.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tileweave.errors import GraphError
from tileweave.frontends.torch.call import OPERATORS
from tileweave.kept import cached_property, lock_of_process

_WHOLE = ("scaled_dot_product_attention", "upsample", "_pad", "bucketize", "rnn_", "gru", "lstm")
"""Operators that PyTorch would write as many others, which here are one."""
_EXPORTING = lock_of_process(threading.RLock)
"""An export changes the module's modes and PyTorch's own state meanwhile, so that one is made at a time."""
Shape = tuple[int, ...]
LEAST = 2
"""Extents below this are numbers in every exported program: PyTorch decides by them what repeats, and what is empty."""
MOST = 16
"""Programs of a module that are kept for the same small extents; a module may have code of its own for every extent."""


@dataclass(frozen=True, slots=True)
class Declared:
    """Type and shape that PyTorch gives a result, its symbols bound; an extent that depends on values is None."""

    shape: Shape
    dtype: Any


@dataclass(frozen=True, eq=False)
class Exported:
    """A program that ``torch.export`` made, with what it assumes of its symbols.

    Args:
        program: PyTorch's.
        values: of parameters, buffers and constants, by placeholder, filled in when it is first read.
    """

    program: Any
    values: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def inputs(self) -> list[Any]:
        """The shapes of the inputs that are tensors, as PyTorch declares them."""
        given = {spec.arg.name for spec in self.program.graph_signature.input_specs if spec.target is None}
        nodes = (node for node in self.program.graph.nodes if node.op == "placeholder" and node.name in given)
        shapes = (getattr(node.meta.get("val"), "shape", None) for node in nodes)
        return [shape for shape in shapes if shape is not None]

    def sizes(self, shapes: Sequence[Shape]) -> SymbolValues | None:
        """The symbols' values for inputs of these shapes; None where the program is not the module's for them."""
        import sympy

        dims = [pair for one, shape in zip(self.inputs, shapes, strict=True) for pair in zip(one, shape, strict=True)]
        known: dict[Any, Any] = {}
        environment = None
        for declared, extent in dims:
            expression = _expression(declared)
            if expression is not None and expression.is_symbol:
                environment = declared.node.shape_env
                if known.setdefault(expression, sympy.Integer(extent)) != extent:
                    return None
        sizes = SymbolValues(known)
        if any(sizes.number(declared) != extent for declared, extent in dims):
            return None
        if environment is None:
            return sizes
        ranges = {**environment.var_to_range, **self.program.range_constraints}
        for symbol, extent in known.items():
            if symbol in ranges and not ranges[symbol].lower <= extent <= ranges[symbol].upper:
                return None
        holds = (environment.replace(guard.expr).xreplace(known) for guard in environment.guards)
        return sizes if all(one == True for one in holds) else None  # noqa: E712 - sympy's truth


@dataclass(frozen=True, slots=True)
class SymbolValues:
    """Values of the symbols of an exported program, in sympy's integers."""

    known: Mapping[Any, Any] = field(default_factory=dict)

    def number(self, value: Any) -> Any:
        """A symbolic number as a number, None where it depends on values; anything else as it is."""
        expression = _expression(value)
        if expression is None:
            return value
        found = expression.xreplace(self.known)
        if not (found.is_number or found.is_Boolean):
            return None
        kind = type(value).__name__
        return bool(found) if kind == "SymBool" else float(found) if kind == "SymFloat" else int(found)

    def declared(self, value: Any) -> Any:
        """What PyTorch says of a result, in numbers."""
        if isinstance(value, (tuple, list)):
            return type(value)(map(self.declared, value))
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            return Declared(tuple(self.number(n) for n in value.shape), value.dtype)
        return self.number(value)


Found = tuple[Exported, SymbolValues]


def _expression(value: Any) -> Any:
    """What a symbolic number stands for, in sympy; None: it is none."""
    return value.node.expr if type(value).__name__ in ("SymInt", "SymFloat", "SymBool") else None


@dataclass(frozen=True, slots=True, eq=False)
class Exports:
    """The exported programs of a module whose inputs have some extents open.

    Args:
        module: the module.
        example: its inputs.
        open: of every tensor of the example, the axes whose extents calls choose.
        made: by the extents below `LEAST`, numbered over all open axes: programs that serve different extents.
    """

    module: Any
    example: Any
    open: Sequence[Sequence[int]]
    made: dict[frozenset[tuple[int, int]], list[Exported]] = field(default_factory=dict)

    def at(self, shapes: Sequence[Shape]) -> Found:
        """A program for inputs of these shapes, and the values of its symbols.

        Raises:
            GraphError: the module cannot have these shapes.
        """
        extents = [shape[axis] for shape, axes in zip(shapes, self.open, strict=True) for axis in axes]
        small = frozenset((k, extent) for k, extent in enumerate(extents) if extent < LEAST)
        with _EXPORTING:  # who waited may find what the other one made
            return self._found(shapes, small, len(small) < len(extents))

    def _found(self, shapes: Sequence[Shape], small: frozenset[tuple[int, int]], free: bool) -> Found:
        """A kept program that serves these shapes, or a new one; with symbols where extents are ``free``."""
        known = self.made.setdefault(small, [])
        for general in reversed(known):
            sizes = general.sizes(shapes)
            if sizes is not None:
                return general, sizes
        found: Found | None = None
        if free and len(known) < MOST:
            with contextlib.suppress(Exception):  # what has no symbolic program may have one for numbers
                general = self._symbolic(shapes)
                sizes = general.sizes(shapes)
                found = (general, sizes) if sizes is not None else None
        if found is None:
            found = exported(self.module, reshaped(self.example, shapes)), SymbolValues()
        if len(known) < MOST:  # a module that has none with symbols is not asked for them for ever
            known.append(found[0])
        return found

    def _symbolic(self, shapes: Sequence[Shape]) -> Exported:
        """The program with a symbol for every open extent that is at least `LEAST` in these shapes."""
        import torch

        free = [
            {axis: torch.export.Dim.AUTO for axis in axes if shape[axis] >= LEAST}
            for shape, axes in zip(shapes, self.open, strict=True)
        ]
        return exported(self.module, reshaped(self.example, shapes), free)


def reshaped(example: Any, shapes: Sequence[Shape]) -> Any:
    """An example with tensors of other shapes, in the order of the module's inputs."""
    following = iter(shapes)
    return _changed(example, lambda tensor: tensor.new_zeros(next(following)), lambda other: other)


def _changed(example: Any, change: Callable[[Any], Any], other: Callable[[Any], Any]) -> Any:
    """An example with its tensors changed, and what is no tensor otherwise."""
    if isinstance(example, Mapping):
        return {key: _changed(item, change, other) for key, item in example.items()}
    if isinstance(example, (tuple, list)):
        items = [_changed(item, change, other) for item in example]
        return type(example)(*items) if hasattr(example, "_fields") else type(example)(items)
    return change(example) if hasattr(example, "new_zeros") else other(example)


def exported(module: Any, example: Any, free: Sequence[Mapping[int, Any]] | None = None) -> Exported:
    """A module exported for inputs like the example.

    Args:
        module: a ``torch.nn.Module``.
        example: its inputs.
        free: of every tensor, axis -> what ``torch.export`` says of its extent; None: all are numbers.

    Raises:
        GraphError: PyTorch refuses.
    """
    named = dict(example) if isinstance(example, Mapping) else {}
    whole = tuple(example) if isinstance(example, (tuple, list)) else (example,)
    arguments: tuple[Any, ...] = () if isinstance(example, Mapping) else whole
    following = iter(free or ())
    given = named if isinstance(example, Mapping) else arguments
    dynamic = None if free is None else _changed(given, lambda _: dict(next(following)), lambda _: None)
    with _EXPORTING:
        return _exported(module, arguments, named, dynamic)


def _exported(module: Any, arguments: tuple[Any, ...], named: dict[str, Any], dynamic: Any) -> Exported:
    import torch

    training = {one: one.training for one in module.modules()}
    module.eval()
    try:
        with torch.no_grad(), warnings.catch_warnings(), _without_caches(module):
            warnings.simplefilter("ignore")
            made = torch.export.export(module, arguments, named, dynamic_shapes=dynamic, strict=False)
            return Exported(made.run_decompositions(dict(_decompositions())))
    except Exception as error:
        reason = str(error).strip().splitlines()
        problem = f"torch.export refuses the module: {reason[0] if reason else type(error).__name__}"
        raise GraphError("from_torch(module, example)", problem, legal="a module that torch.export takes") from error
    finally:
        module.train(training[module])
        for one, trains in training.items():  # a part may be frozen
            one.training = trains


@lru_cache(maxsize=1)
def _decompositions() -> Any:
    """How operators that have no counterpart here are written by others: PyTorch's own definitions."""
    import torch
    from torch._decomp import decomposition_table

    table = torch.export.default_decompositions()
    for operator in list(table):
        if str(operator) in OPERATORS and any(name in str(operator) for name in _WHOLE):
            table.pop(operator)
    for operator, meaning in decomposition_table.items():
        if str(operator).startswith("aten.") and str(operator) not in OPERATORS and operator not in table:
            table[operator] = meaning
    return table


@contextlib.contextmanager
def _without_caches(module: Any) -> Iterator[None]:
    """Models of transformers return no caches of keys and values meanwhile, which torch.export does not know."""
    config: Any = getattr(module, "config", None)
    used = getattr(config, "use_cache", None) is True
    if used:
        config.use_cache = False
    try:
        yield
    finally:
        if used:
            config.use_cache = True
