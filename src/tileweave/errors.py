"""Every error that tileweave raises on purpose.

The tree::

    TileweaveError                what was asked, the values, what would be legal
    ├── LayoutError               (ValueError)  malformed or impossible layouts and index expressions
    │   ├── NotDivisible          an extent does not divide where it must
    │   ├── Incongruent           two profiles or shapes do not fit each other
    │   ├── NoLayout              no layout agrees with the definition; carries the witness
    │   ├── Undecided             the exact search passed its stated bound
    │   └── Unproved              a symbolic side condition could not be proved; names it
    ├── SpaceError                (ValueError)  boxes, affine maps, projections
    ├── GraphError                (ValueError)  a tensor expression that makes no sense: shapes, axes, parameters
    │   └── DtypeError            (TypeError)   the same, of types
    ├── VerifyError               (ValueError)  a well-formedness rule is broken; carries rule id and node path
    ├── ScheduleError             (ValueError)  a transform of a TEIR program that would not keep its value
    ├── BackendError              code generation or compilation failed; keeps source and compiler log
    ├── PlanError                 (ValueError)  no plan fits; carries the broken budget and the least that fits
    ├── StorageError              (ValueError)  a source that cannot be read, a sink that cannot be written
    ├── RunError                  a run failed; nothing half-written was left behind
    └── UsageError                (ValueError)  words of a command line that its command does not take
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class TileweaveError(Exception):
    """An error in one form: where and what, then the inputs, then what would be legal.

    Args:
        where: the public function as the user wrote it, e.g. ``"linear(x, w, b)"``.
        problem: the offending value and what is wrong with it, one sentence without a final stop.
        inputs: the values that were given, by name, printed in our own notation.
        legal: what would have been accepted.
        facts: values for programs (a witness, a bound, a rule id), kept in ``error.facts``
            and readable as attributes.

    Example:
        >>> print(TileweaveError("f(x)", "3 is odd", inputs={"x": 3}, legal="an even number"))
        f(x): 3 is odd
          x      3
          legal  an even number
    """

    def __init__(
        self,
        where: str,
        problem: str,
        *,
        inputs: Mapping[str, object] | None = None,
        legal: str = "",
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.where = where
        self.problem = problem
        self.inputs = {name: str(value) for name, value in (inputs or {}).items()}
        self.legal = legal
        self.facts: dict[str, Any] = dict(facts or {})
        super().__init__(self._render())

    def _render(self) -> str:
        rows = dict(self.inputs)
        if self.legal:
            rows["legal"] = self.legal
        width = max((len(name) for name in rows), default=0)
        lines = [f"{self.where}: {self.problem}"]
        for name, value in rows.items():
            first, *rest = value.splitlines() or [""]
            lines.append(f"  {name:<{width}}  {first}".rstrip())
            lines += [f"  {'':<{width}}  {line}".rstrip() for line in rest]
        return "\n".join(lines)

    def named(self, where: str) -> None:
        """Name the function that the user called, where one that it calls has refused."""
        self.where = where
        self.args = (self._render(),)

    def located(self, line: object) -> None:
        """Name the user's line, where what has refused did not know it."""
        self.inputs = {"line": str(line), **self.inputs}
        self.args = (self._render(),)

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.where, self.problem, self.inputs, self.legal, self.facts)


def _rebuild(
    cls: type[TileweaveError], where: str, problem: str, inputs: dict[str, str], legal: str, facts: dict[str, Any]
) -> TileweaveError:
    return cls(where, problem, inputs=inputs, legal=legal, facts=facts)


class LayoutError(TileweaveError, ValueError):
    """A layout, or an index expression, that is malformed or does not exist."""


class NotDivisible(LayoutError):
    """An extent does not divide where the operation needs it to."""


class Incongruent(LayoutError):
    """Two profiles or shapes do not fit each other."""


class NoLayout(LayoutError):
    """No layout agrees with the definition. ``facts['witness']``: points, values, the condition they break."""


class Undecided(LayoutError):
    """The exact search passed its bound (``facts['bound']``); the answer is unknown, not no."""


class Unproved(LayoutError):
    """A symbolic side condition (``facts['condition']``) could not be proved."""


class SpaceError(TileweaveError, ValueError):
    """A box, an affine map or a projection that does not fit its space."""


class GraphError(TileweaveError, ValueError):
    """A tensor expression that makes no sense: shapes, axes or parameters that do not fit."""


class DtypeError(GraphError, TypeError):
    """Types that an operator does not take: of elements, or of an argument."""


class VerifyError(TileweaveError, ValueError):
    """A well-formedness rule is broken. ``facts['rule']`` is its id, ``facts['path']`` the node."""


class ScheduleError(TileweaveError, ValueError):
    """A transform that would not keep the value of a TEIR program."""


class BackendError(TileweaveError):
    """Code generation or compilation failed. ``facts['source']`` and ``facts['log']`` keep the evidence."""


class PlanError(TileweaveError, ValueError):
    """No plan fits. ``facts['least_bytes']`` is the least peak memory found, in bytes per machine."""


class StorageError(TileweaveError, ValueError):
    """A source that cannot be read or a sink that cannot be written."""


class RunError(TileweaveError):
    """A run failed; its sinks were not written."""


class UsageError(TileweaveError, ValueError):
    """Words of a command line that the command does not take."""


def short_text(value: object) -> str:
    """The beginning of a value's ``repr``, for messages."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python prints neither endless digits nor endless nests
        text = f"a number of {value.bit_length()} bits" if isinstance(value, int) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."
