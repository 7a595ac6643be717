"""``kernel.tune(space, ..)``: options of a kernel, ranked by static cost, pruned by resources, timed on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from tileweave.errors import TileweaveError, VerifyError
from tileweave.kernel import targets


@dataclass(frozen=True)
class Setting:
    """One setting of the options.

    Args:
        options: name -> value.
        estimate: what it takes by its counts; None where it cannot be dispatched.
        problem: why it cannot run; empty if it can.
        seconds: measured on a device; None: not timed.
    """

    options: Mapping[str, Any]
    estimate: Any
    problem: str = ""
    seconds: float | None = None

    def __str__(self) -> str:
        shown = " ".join(f"{name}={value}" for name, value in self.options.items())
        if self.problem:
            return f"{shown}: no: {self.problem}"
        timed = "" if self.seconds is None else f"{self.seconds * 1e6:.1f} us measured; "
        return f"{shown}: {timed}{self.estimate}"


@dataclass(frozen=True)
class TunedKernel:
    """The outcome: settings that can run, best first, then those that cannot.

    Args:
        choices: the settings.
        note: whether they were timed, and if not, why.
    """

    choices: tuple[Setting, ...]
    note: str

    @property
    def best(self) -> Mapping[str, Any]:
        """The options of the best setting."""
        return self.choices[0].options

    def __str__(self) -> str:
        return "\n".join([*map(str, self.choices), self.note])


def tune(
    name: str, space: Mapping[str, Sequence[Any]], trace: Callable[[Mapping[str, Any]], Any],
    run: Callable[[Mapping[str, Any]], float] | None, arch: str, most: int,
) -> TunedKernel:  # fmt: skip
    """Ranks the settings of a space.

    Args:
        name: the kernel's.
        space: option -> values.
        trace: the kernel of a setting.
        run: seconds of a setting on a device; None: they are not timed.
        arch: the target.
        most: how many of the best are timed.

    Raises:
        VerifyError: no setting can run; lists why.
    """
    for option, values in space.items():
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise VerifyError(
                f"{name}.tune(space)", f"the option {option} has no values: {values!r}",
                facts={"rule": "argument", "path": ""}, legal=f"{{{option!r}: (value, ..)}}",
            )  # fmt: skip
    found = [_choice(dict(zip(space, values, strict=True)), trace, arch) for values in product(*space.values())]
    # What may spill comes last: the counts do not show it. Of equals the one with more in flight: its copies are hidden
    # better, which they do not show either.
    can = sorted(
        (c for c in found if not c.problem),
        key=lambda c: (c.estimate.may_spill, c.estimate.seconds, -c.estimate.shared_bytes),
    )
    cannot = tuple(c for c in found if c.problem)
    if not can:
        raise VerifyError(
            f"{name}.tune(space)", "no setting can run", inputs={str(i): str(c) for i, c in enumerate(cannot[:8])},
            facts={"rule": "argument", "path": ""},
        )  # fmt: skip
    note = "ranked by counts and published rates; not timed"
    if run is not None:
        try:
            timed = [Setting(c.options, c.estimate, "", run(c.options)) for c in can[:most]]
        except TileweaveError as error:
            note = f"ranked by counts and published rates; not timed: {str(error).splitlines()[0]}"
        else:
            can = [*sorted(timed, key=lambda c: c.seconds or 0.0), *can[most:]]
            note = f"the first {len(timed)} were timed on a device"
    return TunedKernel((*can, *cannot), note)


def _choice(options: Mapping[str, Any], trace: Callable[[Mapping[str, Any]], Any], arch: str) -> Setting:
    try:
        made = targets.dispatcher("estimate")(trace(options), arch)
    except TileweaveError as error:
        return Setting(options, None, str(error).splitlines()[0])
    return Setting(options, made, made.problem)
