"""What it takes to turn one layout of a tensor into another: nothing, registers, lanes, memory or devices.

Both layouts send logical elements to named hardware axes. For every level of the machine the question is the same: with
the axes below that level forgotten, is every place where an element must be a place where it already is? The
outermost level at which it is not decides the means; `Conversion.steps` is the plan, which runs on data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from tileweave.errors import Incongruent, LayoutError, NoLayout, Undecided, Unproved
from tileweave.kept import cached_property
from tileweave.layout.analysis.collectives import Collective, Exchange, Transfers, recognise, traffic_of
from tileweave.layout.analysis.memory import check_positive, known, size_of
from tileweave.layout.analysis.moves import ConversionStep, Copy, LocalMove, Shuffle, Trip
from tileweave.layout.analysis.places import (
    BOUND,
    LEVELS,
    ORDER,
    Digit,
    Level,
    Part,
    Places,
    State,
    cells_of,
    coordinates,
    digits_of,
    listed,
    project,
    rekeyed,
    shifts_of,
    split,
    turns_of,
    used,
)
from tileweave.layout.analysis.terms import MONOIDS, Combine, Monoid, butterfly
from tileweave.layout.core.checks import need_numbers
from tileweave.layout.core.combine import group
from tileweave.layout.core.coord import DEFAULT_AXIS, Coord
from tileweave.layout.core.exact import same_map
from tileweave.layout.core.layout import Iter, Layout
from tileweave.layout.core.symbolic import is_expr, same
from tileweave.layout.cute import CuteLayout, to_coordinate_map
from tileweave.layout.lego import GroupBy, OrderBy, to_core

__all__ = ["LEVELS", "Conversion", "Level", "Means", "Part", "conversion"]

Means = Literal["nothing", "registers", "lanes", "shared", "memory", "devices"]
Levels = Mapping[str, Level | Sequence[Part]]
NAMES: Sequence[Means] = ("registers", "lanes", "shared", "devices")
"""The means for each level, by `ORDER`."""
LEVEL_OF: Mapping[Means, Level] = dict(zip(NAMES, ("register", "lane", "warp", "device"), strict=True))

WHERE = "conversion(source, target)"


@dataclass(frozen=True)
class Conversion:
    """What a conversion needs, and the steps that do it.

    Args:
        source, target: the layouts. A source n times as large holds n terms of each element (the slowest logical
            index), which `reduce` combines.
        means: the outermost means: nothing; a permutation of registers within each thread; a lane shuffle within each
            warp; shared memory within each block; loads, stores or moves of memory; or moving between devices.
        element: one logical index that has to move so far, and
        place: the coordinate that it must reach; None where the proof is structural.
        levels, reduce, element_bytes: as given to `conversion`.
    """

    source: Any
    target: Any
    means: Means
    element: int | None = None
    place: Coord | None = None
    levels: Levels | None = None
    reduce: Monoid | None = None
    element_bytes: int = 4

    @property
    def level(self) -> Level | None:
        """The outermost level at which an element is not yet where it must be; None for nothing."""
        return "memory" if self.means == "memory" else LEVEL_OF.get(self.means)

    @property
    def terms(self) -> int:
        """How many terms of each element the source holds."""
        return int(self.source.size) // int(self.target.size)

    @cached_property
    def collective(self) -> Collective:
        """What the devices do together: in closed form, so of tensors of any size."""
        digits = _all_digits(self.source, self.target, self.levels)
        try:
            have, want = (split(_need_core(one), digits, WHERE) for one in (self.source, self.target))
        except (NoLayout, Undecided):
            return recognise(Transfers.listed(*self._places))
        need_numbers(WHERE, have, want)
        return recognise(traffic_of(have, want, [n for n, level in _names(digits) if level == "device"], WHERE))

    @cached_property
    def steps(self) -> tuple[ConversionStep, ...]:
        """The steps, in order. They hold tables of all places.

        Raises:
            Undecided: more than `BOUND` places. LayoutError: two elements share a place.
        """
        return tuple(_steps(self))

    @cached_property
    def _places(self) -> tuple[Places, Places]:
        return _tables(self.source, self.target, _all_digits(self.source, self.target, self.levels))

    @property
    def agents(self) -> tuple[str, ...]:
        """The axes whose coordinates are the keys of a state, outermost first."""
        return self._places[0].agent_axes

    def distribute(self, values: Any) -> State:
        """Values of the elements (with terms: terms slowest) as data placed by the source."""
        return self._places[0].distribute(values)

    def collect(self, state: State) -> np.ndarray[Any, Any]:
        """The values of the elements from data placed by the target; copies must agree."""
        return self._places[1].collect(state)

    def execute(self, state: State) -> State:
        """Data placed by the source -> data placed by the target, by the steps.

        Example:
            >>> both = conversion(Layout(((4, {"lane": 1}), (2, {"reg": 1}))), Layout(((8, {"reg": 1}),)))
            >>> both.execute({(lane,): np.array([2 * lane, 2 * lane + 1]) for lane in range(4)})
            {(0,): array([0, 1, 2, 3, 4, 5, 6, 7])}
        """
        axes = self.agents
        for step in self.steps or (LocalMove.make(*self._places, self.element_bytes),):
            state = step.execute(rekeyed(state, axes, step.source.agent_axes))
            axes = step.target.agent_axes
        return rekeyed(state, axes, self.agents)

    def __str__(self) -> str:
        """The steps, one a line."""
        return "\n".join(map(str, self.steps)) or "nothing"


def conversion(
    source: Any,
    target: Any,
    levels: Levels | None = None,
    *,
    reduce: Monoid | None = None,
    element_bytes: int = 4,
) -> Conversion:
    """The cheapest means by which a tensor held as `source` comes to be held as `target`; replicas count as holders.

    Args:
        source, target: layouts of one tensor, indices row-major; on the axis ``m`` in any notation.
        levels: axis name -> "register", "memory", "lane", "warp" or "device"; left out, `LEVELS`. An axis that counts
            through several levels, such as a thread number, is given by its digits, innermost first:
            ``{"tid": (("lane", 32), ("warp", None))}``; they are named ``tid_lane`` and ``tid_warp`` in the answer.
        reduce: "sum", "prod", "max" or "min": the source holds several terms of each element, counted by the slowest
            logical index, and the target their combination.
        element_bytes: bytes per element.

    Raises:
        Incongruent: the sizes do not fit. LayoutError: an axis without a level, or a value outside its digits.
        Undecided: replicas, or digits that carry, and more than `BOUND` comparisons.
        Unproved: a layout is symbolic, and what has to be compared is not proved.

    Example:
        >>> rows = Layout(((4, {"lane": 1}), (2, {"reg": 1})))
        >>> columns = Layout(((4, {"reg": 1}), (2, {"lane": 1})))
        >>> conversion(rows, rows).means, conversion(rows, columns).means
        ('nothing', 'lanes')
        >>> print(conversion(rows, columns))
        lanes: 3 shuffles, the fewest; 12 instructions a warp
        >>> partial = Layout(((2, {"gpu": 1}), (8, 1)))
        >>> print(conversion(partial, Layout(((8, 1),), ((2, {"gpu": 1}),)), reduce="sum"))
        devices: all-reduce among {0, 1}: 8 words a device, sum

    Source: own.
    """
    source, target = (_known(one) for one in (source, target))
    check_positive(WHERE, element_bytes=element_bytes)
    if reduce is not None and (not isinstance(reduce, str) or reduce not in MONOIDS):
        raise LayoutError(WHERE, f"{reduce!r} is no monoid", legal=", ".join(MONOIDS))
    if levels is not None and not isinstance(levels, Mapping):
        raise LayoutError(WHERE, f"levels {levels!r} are no mapping", legal="axis name -> level")
    inputs = {"source": source, "target": target}
    digits = _all_digits(source, target, levels)
    options: Any = {"levels": levels, "reduce": reduce, "element_bytes": element_bytes}
    if reduce is not None and not same(source.size, target.size):
        if is_expr(source.size) or is_expr(target.size) or source.size % target.size:
            raise Incongruent(WHERE, f"{source.size} is no multiple of {target.size}", inputs=inputs)
        return _reduction(source, target, options)
    if not same(source.size, target.size):
        legal = "reduce='sum', if the slowest indices of the source are terms" if reduce is None else ""
        raise Incongruent(WHERE, f"sizes {source.size} and {target.size} differ", inputs=inputs, legal=legal)
    try:
        have, want = (split(_need_core(one), digits, WHERE) for one in (source, target))
    except (NoLayout, Undecided):
        return Conversion(source, target, *_listed(source, target, digits), **options)
    return Conversion(source, target, *_structural(have, want, dict(_names(digits))), **options)


def _known(value: Any) -> Any:
    """A core layout where there is one; any other layout as it is."""
    value = known(value)
    if isinstance(value, Layout):
        return value
    if isinstance(value, CuteLayout):
        return to_coordinate_map(value)
    if isinstance(value, GroupBy | OrderBy):
        try:
            return to_core(value if isinstance(value, GroupBy) else value.GroupBy(value.dims))
        except (NoLayout, Undecided):
            return value
    size_of(value, WHERE)
    return value


def _need_core(layout: Any) -> Layout:
    if not isinstance(layout, Layout):
        raise NoLayout(WHERE, "this is no strided layout")
    return layout


Answer = tuple[Means, int | None, Coord | None]


def _all_digits(source: Any, target: Any, levels: Levels | None) -> dict[str, list[Digit]]:
    given = LEVELS if levels is None else levels
    axes = {a for one in (source, target) for a in (used(one) if isinstance(one, Layout) else {DEFAULT_AXIS})}
    digits = {axis: digits_of(axis, given.get(axis, LEVELS.get(axis) if axis == DEFAULT_AXIS else None), WHERE)
              for axis in sorted(axes)}  # fmt: skip
    if len(dict(_names(digits))) < sum(map(len, digits.values())):
        raise LayoutError(WHERE, "two digits have one name", legal="other names for the axes", inputs=dict(digits))
    return digits


def _names(digits: Mapping[str, Sequence[Digit]]) -> list[tuple[str, Level]]:
    return [(name, level) for row in digits.values() for name, level, _ in row]


def _resident(axes: set[str], level_of: Mapping[str, Level]) -> str:
    """Whether what uses these axes lies in the threads or in memory; "" if either will do."""
    levels = {level_of[a] for a in axes}
    return "threads" if levels & {"register", "lane", "warp"} else "memory" if "memory" in levels else ""


def _lies(placement: Places) -> str:
    """`_resident` of a table."""
    moved = {name for k, name in enumerate(placement.names) if placement.at[:, :, k].any()}
    return _resident(moved, dict(zip(placement.names, placement.levels, strict=True)))


def _checks(first: str, second: str) -> list[tuple[int, Means]]:
    """What is to be compared, outermost first: a level and the means it needs; a level of -1 needs them anyway."""
    if first and second and first != second:
        return [(3, "devices"), (-1, "memory")]
    if "memory" in (first, second):
        return [(3, "devices"), (0, "memory")]
    return [(k, NAMES[k]) for k in (3, 2, 1, 0)]


def _structural(source: Layout, target: Layout, level_of: Mapping[str, Level]) -> Answer:
    """The outermost level at which the target is not contained in the source, all axes being of one level."""
    for k, means in _checks(_resident(used(source), level_of), _resident(used(target), level_of)):
        if k < 0:
            return means, None, None
        kept = {axis for axis, level in level_of.items() if ORDER[level] >= k}
        if not _contained(target, source, kept):
            return means, *_example(target, source, kept)
    return "nothing", None, None


def _listed(source: Any, target: Any, digits: Mapping[str, Sequence[Digit]]) -> Answer:
    """As `_structural`, every place written in its digits one by one."""
    copies = prod(it.extent for one in (source, target) if isinstance(one, Layout) for it in one.replica)
    if source.size * copies > BOUND:
        raise Undecided(WHERE, f"{source.size * copies} places would have to be compared", facts={"bound": BOUND})
    have, want = _tables(source, target, digits)
    return _compared(have, want, want.at, 0)


def _compared(have: Places, want: Places, places: np.ndarray[Any, Any], innermost: int) -> Answer:
    """The outermost level from `innermost` on at which a place by (element, replica) is not one of `have`."""
    for k, means in _checks(_lies(have), _lies(want)):
        if k < 0:
            return means, None, None
        if k < innermost:
            break
        kept = have.columns(k)
        found = (places[:, :, None, kept] == have.at[:, None, :, kept]).all(axis=3).any(axis=2)
        if not found.all():
            x, r = (int(v) for v in np.argwhere(~found)[0])
            return means, x, Coord(tuple((have.names[j], int(places[x, r, j])) for j in kept))
    return "nothing", None, None


def _tables(source: Any, target: Any, digits: Mapping[str, Sequence[Digit]]) -> tuple[Places, Places]:
    """Both layouts as tables over the same axes, outermost first."""
    names = _names(digits)
    order = sorted(range(len(names)), key=lambda k: (-ORDER[names[k][1]], names[k][0]))
    parts = tuple(names[k][0] for k in order), tuple(names[k][1] for k in order)
    a, b = (Places(listed(one, digits, WHERE)[:, :, order], *parts, WHERE) for one in (source, target))
    return a, b


def _contained(target: Layout, source: Layout, kept: set[str]) -> bool:
    """Whether every target place of every element is among its source places, on the kept axes."""
    a, b = project(target, kept), project(source, kept)
    if not a.replica and not b.replica:
        return same_map(a, b)
    try:
        return _missing(a, b) is None
    except (Undecided, Unproved):
        if same_map(a, b, replicas="set"):
            return True
        raise


def _missing(a: Layout, b: Layout) -> tuple[int, Coord] | None:
    """An element of `a` with a place that `b` does not hold, and that place; only where the two differ is looked at."""
    need_numbers(WHERE, a, b)
    axes = sorted(used(a) | used(b))
    cells = cells_of([turns_of(a, b, signs=(1, -1))], a.size, WHERE)
    mine, theirs = (shifts_of(one, axes, WHERE) for one in (a, b))
    if cells.size * len(mine) * len(theirs) > BOUND:
        many = cells.size * len(mine) * len(theirs)
        raise Undecided(WHERE, f"{many} places would have to be compared", facts={"bound": BOUND})
    places = coordinates(a, cells, axes)[:, None, :] + mine
    apart = places - coordinates(b, cells, axes)[:, None, :]
    found = (apart[:, :, None, :] == theirs).all(axis=3).any(axis=2)
    bad = np.argwhere(~found)
    if not bad.size:
        return None
    x, r = (int(v) for v in bad[0])
    return int(cells[x]), Coord(tuple((axis, int(v)) for axis, v in zip(axes, places[x, r], strict=True)))


def _example(target: Layout, source: Layout, kept: set[str]) -> tuple[int | None, Coord | None]:
    """An element that has to move, where that is found by listing."""
    try:
        found = _missing(project(target, kept), project(source, kept))
    except (Undecided, Unproved):
        return None, None
    return found if found is not None else (None, None)


# --- steps


def _steps(plan: Conversion) -> list[ConversionStep]:
    if plan.terms > 1:
        return _reduce_steps(plan)
    have, want = plan._places
    have.place, want.place  # noqa: B018  # refuse what is not injective
    match plan.means:
        case "nothing":
            return []
        case "registers":
            return [LocalMove.make(have, want, plan.element_bytes)]
        case "lanes":
            direct: list[ConversionStep] = [Shuffle.make(have, want, plan.element_bytes)]
            ways = [direct, _swapped(plan) or direct]
            return min(ways, key=lambda steps: sum(step.cost.instructions for step in steps))
        case "shared":
            return [Trip.make(have, want, plan.element_bytes)]
        case "memory":
            way: Any = {"threads": "loads"}.get(_lies(want)) or {"threads": "stores"}.get(_lies(have), "moves")
            return [Copy.make(have, want, plan.element_bytes, way)]
    return [Exchange(have, want, plan.element_bytes, plan.collective, None)]


def _swapped(plan: Conversion) -> list[ConversionStep] | None:
    """Shuffles that each exchange a lane bit for a slot bit, two selects around each, and one that permutes lanes.

    None unless both layouts are made of bits without replicas, whose lane bits become slot bits and conversely.
    """
    now, goal = _bits_of(plan.source), _bits_of(plan.target)
    digits = _all_digits(plan.source, plan.target, plan.levels)
    if now is None or goal is None or any(row[0][0] != axis for axis, row in digits.items()):
        return None
    levels = dict(_names(digits))
    innermost = [[{levels[a] for a in bit.axes} for bit in side] for side in (now, goal)]
    leave = [k for k, (a, b) in enumerate(zip(*innermost, strict=True)) if a == {"lane"} and b == {"register"}]
    enter = [k for k, (a, b) in enumerate(zip(*innermost, strict=True)) if a == {"register"} and b == {"lane"}]
    if not leave or len(leave) != len(enter):
        return None
    steps: list[ConversionStep] = []
    for k in leave:
        other = next((j for j in enter if goal[j] == now[k]), enter[0])
        enter.remove(other)
        after = list(now)
        after[k], after[other] = now[other], now[k]
        steps += _one_step(plan, now, after)
        now = after
    return steps + list(
        conversion(_of_bits(now, plan), plan.target, plan.levels, element_bytes=plan.element_bytes).steps
    )


def _one_step(plan: Conversion, before: list[Coord], after: list[Coord]) -> list[ConversionStep]:
    source, target = (_of_bits(one, plan) for one in (before, after))
    step = conversion(source, target, plan.levels, element_bytes=plan.element_bytes)
    return [Shuffle.make(*step._places, plan.element_bytes)]


def _of_bits(bits: list[Coord], plan: Conversion) -> Layout:
    return Layout(tuple(Iter(2, stride) for stride in bits), (), plan.source.offset)


def _bits_of(layout: Any) -> list[Coord] | None:
    """The strides of the bits of the logical index, slowest first; None if it has no bits, or replicas."""
    if not isinstance(layout, Layout) or any(it.extent > 1 for it in layout.replica):
        return None
    if any(it.extent & (it.extent - 1) for it in layout.shard):
        return None
    return [(1 << k) * it.stride for it in layout.shard for k in reversed(range(it.extent.bit_length() - 1))]


# --- terms


def _reduction(source: Any, target: Any, options: Any) -> Conversion:
    """The means of a reduction: that of bringing each element's terms together, and registers at least."""
    terms = source.size // target.size
    plan = Conversion(source, target, "registers", None, None, **options)
    kind = plan.collective.kind
    if kind not in ("none", "slice"):
        return Conversion(source, target, "devices", None, None, **options)
    have, want = plan._places
    repeated = np.broadcast_to(want.at, (terms, *want.at.shape)).reshape(terms * want.size, *want.at.shape[1:])
    means, element, place = _compared(have, want, repeated, 1)
    if means == "nothing":
        means = "memory" if "memory" in (_lies(have), _lies(want)) else "registers"
    return Conversion(source, target, means, element, place, **options)


def _reduce_steps(plan: Conversion) -> list[ConversionStep]:
    have, want = plan._places
    monoid, element_bytes = str(plan.reduce), plan.element_bytes
    have.place, want.place  # noqa: B018  # refuse what is not injective
    if plan.means == "registers" or (plan.means == "memory" and "threads" not in (_lies(have), _lies(want))):
        return [Combine.make(have, want, monoid, element_bytes)]
    less = _fewer_terms(plan)
    if less is not None:
        first, rest = less
        return [*first.steps, *rest.steps]
    if plan.means == "devices":
        step = Exchange(have, want, element_bytes, plan.collective, monoid)
        staged = _all_reduced(plan) if plan.collective.kind == "exchange" else None
        if staged is not None and sum(s.cost.words for s in staged) < step.cost.words:
            return staged
        return [step]
    if plan.means == "lanes":
        middle = _spread(plan)
        if middle is not None:
            rest = conversion(middle, plan.target, plan.levels, element_bytes=element_bytes)
            crossed = butterfly(have, conversion(plan.source, middle, plan.levels, reduce=plan.reduce)._places[1],
                                monoid, element_bytes)  # fmt: skip
            if crossed is not None:
                return [crossed, *rest.steps]
    return _brought_together(plan)


def _term_blocks(plan: Conversion) -> tuple[tuple[Iter, ...], tuple[Iter, ...]] | None:
    """(the iters of the terms, the iters of the elements) of the source, if it groups so."""
    if not isinstance(plan.source, Layout):
        return None
    try:
        terms, rest = group(plan.source, (plan.terms, plan.target.size))
    except NoLayout:
        return None
    return terms, rest


def _fewer_terms(plan: Conversion) -> tuple[Conversion, Conversion] | None:
    """First the terms that one agent holds; None if there are none, or all are."""
    blocks = _term_blocks(plan)
    digits = _all_digits(plan.source, plan.target, plan.levels)
    if blocks is None:
        return None

    def inside(it: Iter) -> bool:
        return all(ORDER[level] == 0 for axis in it.stride.axes for _, level, _ in digits[axis])

    outside = tuple(it for it in blocks[0] if not inside(it) and it.extent > 1)
    if prod(it.extent for it in outside) == plan.terms or not outside:
        return None
    within = tuple(it for it in blocks[0] if inside(it))
    ordered = Layout((*within, *outside, *blocks[1]), plan.source.replica, plan.source.offset)
    middle = Layout((*outside, *blocks[1]), plan.source.replica, plan.source.offset)
    options: Any = {"reduce": plan.reduce, "element_bytes": plan.element_bytes}
    first = conversion(ordered, middle, plan.levels, **options)
    return first, conversion(middle, plan.target, plan.levels, **options)


def _spread(plan: Conversion) -> Layout | None:
    """The layout in which every agent with a term of an element holds the result, in the term's slot."""
    blocks = _term_blocks(plan)
    if blocks is None:
        return None
    return Layout(blocks[1], plan.source.replica + blocks[0], plan.source.offset)


def _all_reduced(plan: Conversion) -> list[ConversionStep] | None:
    """First an all-reduce, then what is left; None if that is not one."""
    middle = _spread(plan)
    if middle is None:
        return None
    options: Any = {"element_bytes": plan.element_bytes}
    first = conversion(plan.source, middle, plan.levels, reduce=plan.reduce, **options)
    if first.collective.kind != "all-reduce":
        return None
    return [*first.steps, *conversion(middle, plan.target, plan.levels, **options).steps]


def _brought_together(plan: Conversion) -> list[ConversionStep]:
    """All terms of an element into slots of their own beside each other, then combined."""
    digits = _all_digits(plan.source, plan.target, plan.levels)
    slots = [axis for axis, row in digits.items() if ORDER[row[0][1]] == 0 and row[0][0] == axis]
    slots += [axis for axis, level in (plan.levels or LEVELS).items() if isinstance(level, str) and not ORDER[level]]
    if not isinstance(plan.target, Layout) or not slots:
        raise LayoutError(WHERE, "the terms have no slots to come together in", legal="a register or memory axis")
    axis = next((a for a in slots if a in used(plan.target)), slots[0])
    spread = Iter(plan.terms, Coord(((axis, plan.target.span(axis)),)))
    middle = Layout((spread, *plan.target.shard), plan.target.replica, plan.target.offset)
    brought = conversion(plan.source, middle, plan.levels, element_bytes=plan.element_bytes)
    together = conversion(middle, plan.target, plan.levels, reduce=plan.reduce, element_bytes=plan.element_bytes)
    return [*brought.steps, *together.steps]
