"""Stochastic Pareto search over shardings: many trials of cheap changes, the frontier of what they cost.

A trial takes a parent on or near the frontier (plans that do not fit the memory are parents too), changes it by a
mutator, and looks up what the child costs in the tables. Mutators are chosen by how often they improved the frontier,
from a prior; each keeps a least share. The archive is seeded by the additive solvers. The search can stop at any trial;
the same seed gives the same frontier. It stops by itself when trials no longer improve anything, or, where it is said
how often the plan will run, when the seconds that further trials take are more than those that they save.

Source: Tapestry, "Stochastic Pareto Frontier Optimization" and "Graph Mutator Selection Optimization".
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tileweave.errors import PlanError
from tileweave.planner.search.tables import Tables

Chosen = tuple[int, ...]
OBJECTIVE_NAMES = ("seconds", "peak_bytes", "bytes_moved", "words_bytes")
BATCH = 256
"""Trials between two looks at who is dominated."""
NEAR = 64
"""Choices behind the frontier that stay parents."""
FLOOR = 0.05
"""The least share of every mutator."""
PATIENCE = 8
"""Batches without an improvement after which the search stops by itself, and over which its worth is estimated."""
TRIAL_SECONDS = 30e-6
"""What a trial of a graph of 20 operations costs (`bench/planner.py`), by which the stop rule prices trials: counted
and not measured, so that a search ends where it ended before."""


@dataclass(frozen=True, slots=True)
class Mutator:
    """A rule that changes a choice.

    Args:
        name: unique.
        propose: (search, parent, random numbers) -> a child.
        applies: whether the rule may be used on the problem.
        prior: weight before anything is known.
    """

    name: str
    propose: Callable[[Pareto, Chosen, random.Random], Chosen]
    applies: Callable[[Tables], bool] = lambda tables: True
    prior: float = 1.0


@dataclass(frozen=True, slots=True)
class Progressed:
    """How far a search has come: trials done, size of the frontier, the least of each objective."""

    trials: int
    frontier: int
    least: tuple[float, ...]


class Pareto:
    """A search that can be continued.

    Args:
        tables: candidates and their costs.
        seed: of the random numbers.
        runs: how often the plan will run; None: trials have no price.
    """

    def __init__(self, tables: Tables, seed: int = 0, runs: float | None = None) -> None:
        self.tables, self.seed, self.trials, self.runs = tables, seed, 0, runs
        self._saved: list[float] = []
        self.points: dict[Chosen, tuple[float, ...]] = {}
        self.frontier: list[Chosen] = []
        self.near: list[Chosen] = []
        self._random = random.Random(seed)
        self._rules = [rule for rule in MUTATORS.values() if rule.applies(tables)]
        self._won = {rule.name: rule.prior for rule in self._rules}
        self._used = {rule.name: 1.0 for rule in self._rules}
        names = ("seconds", "words", "moved", "held")
        self._alone = [[getattr(m, name).tolist() for name in names] for m in tables.alone]
        self._edges = [
            (e.maker, e.reader, *(getattr(e.measures, name).tolist() for name in names[:3])) for e in tables.edges
        ]
        self.counts = [len(offer.choices) for offer in tables.offers]
        self._last = [max((e.reader for e in out), default=k) for k, out in enumerate(tables.out)]
        alike: dict[int, list[int]] = {}
        for k, offer in enumerate(tables.offers):
            alike.setdefault(id(offer), []).append(k)
        self.alike = [alike[id(offer)] for offer in tables.offers]

    # -- costs

    def cost(self, chosen: Sequence[int]) -> tuple[float, ...]:
        """The objectives of a choice: seconds, peak bytes, bytes moved, the sum of the most bytes received."""
        seconds = words = moved = 0.0
        needs = [0.0] * len(chosen)
        for (node_seconds, node_words, node_moved, _), k in zip(self._alone, chosen, strict=True):
            seconds += node_seconds[k]
            words += node_words[k]
            moved += node_moved[k]
        for maker, reader, pair_seconds, pair_words, pair_moved in self._edges:
            a, b = chosen[maker], chosen[reader]
            seconds += pair_seconds[a][b]
            words += pair_words[a][b]
            needs[reader] += pair_words[a][b]
            moved += pair_moved[a][b]
        live = peak = 0.0
        ends: list[float] = [0.0] * len(chosen)
        for k, node in enumerate(self._alone):
            held = node[3][chosen[k]]
            live += held
            peak = max(peak, live + needs[k])
            ends[self._last[k]] += held
            live -= ends[k]
        return seconds, peak, moved, words

    # -- search

    def add(self, chosen: Sequence[int]) -> None:
        """Puts a choice into the archive."""
        child = tuple(chosen)
        if child not in self.points:
            self.points[child] = self.cost(child)

    def run(self, trials: int, progress: Callable[[Progressed], None] | None = None) -> bool:
        """Makes so many more trials; whether the search went on to their end, and did not stop by itself.

        Raises:
            PlanError: there is nothing to choose.
        """
        if not self.counts:
            raise PlanError("Pareto(tables)", "the graph has no operation", legal="one operation or more")
        self.add((0,) * len(self.counts))
        self.sort()
        idle = 0
        while trials > 0:
            made: dict[Chosen, str] = {}
            for _ in range(min(BATCH, trials)):
                rule = self._rule()
                parents = self.near if self.near and self._random.random() < 0.3 else self.frontier
                child = rule.propose(self, self._random.choice(parents), self._random)
                self._used[rule.name] += 1
                self.trials += 1
                trials -= 1
                if child not in self.points:
                    self.points[child] = self.cost(child)
                    made[child] = rule.name
            before, least = set(self.frontier), self.least()[0]
            self.sort()
            better = [child for child in self.frontier if child in made and child not in before]
            for child in better:
                self._won[made[child]] += 1
            idle = 0 if better else idle + 1
            if progress is not None:
                progress(Progressed(self.trials, len(self.frontier), tuple(self.least())))
            self._saved = [*self._saved[1 - PATIENCE :], least - self.least()[0]]
            if idle == PATIENCE or not self._pays():
                return False
        return True

    def _pays(self) -> bool:
        """Whether a batch is expected to save more seconds of all runs than it takes, as far as can be said."""
        if self.runs is None or len(self._saved) < PATIENCE:
            return True
        size = len(self.counts) + len(self._edges)
        return sum(self._saved) / PATIENCE * self.runs >= BATCH * TRIAL_SECONDS * size / 50

    def state(self) -> tuple[Any, ...]:
        """All that a search needs to go on where it stopped, as plain data."""
        return (
            self.trials,
            self.points,
            self.frontier,
            self.near,
            self._random.getstate(),
            self._won,
            self._used,
            self._saved,
        )

    def restore(self, state: tuple[Any, ...]) -> None:
        """Goes on where the search of a state stopped: of the same tables, with the same mutators."""
        self.trials, self.points, self.frontier, self.near, chance, self._won, self._used, self._saved = state
        self._random.setstate(chance)

    def least(self) -> list[float]:
        """The least of each objective on the frontier."""
        return [min(self.points[c][k] for c in self.frontier) for k in range(len(OBJECTIVE_NAMES))]

    def _rule(self) -> Mutator:
        rates = [self._won[rule.name] / self._used[rule.name] for rule in self._rules]
        total = sum(rates)
        weights = [FLOOR + rate / total for rate in rates]
        return self._random.choices(self._rules, weights)[0]

    def sort(self) -> None:
        """The frontier, and those closest behind it; everything else is forgotten."""
        import moocore  # type: ignore[import-untyped]

        items = list(self.points.items())
        costs = np.asarray([cost for _, cost in items])
        front = moocore.is_nondominated(costs)
        self.frontier = [choice for (choice, _), first in zip(items, front, strict=True) if first]
        scale = np.maximum(costs[front].min(0), 1e-12)
        behind = np.flatnonzero(~front)
        distance = (costs[behind] / scale).max(1)
        self.near = [items[behind[k]][0] for k in np.argsort(distance, kind="stable")[:NEAR]]
        kept = [*self.frontier, *self.near]
        self.points = {choice: self.points[choice] for choice in kept}


# ---------------------------------------------------------------------------------------------------------------------
# mutators


MUTATORS: dict[str, Mutator] = {}


def register_mutator(rule: Mutator) -> None:
    """Adds a rule to those that searches use.

    Raises:
        PlanError: there is one of that name.
    """
    if rule.name in MUTATORS:
        raise PlanError("register_mutator(rule)", f"there is a mutator {rule.name!r}", legal="another name")
    MUTATORS[rule.name] = rule


def _one(search: Pareto, parent: Chosen, chance: random.Random) -> Chosen:
    """Another candidate for one node."""
    k = chance.randrange(len(parent))
    return (*parent[:k], chance.randrange(search.counts[k]), *parent[k + 1 :])


def _alike(search: Pareto, parent: Chosen, chance: random.Random) -> Chosen:
    """The same candidate for all nodes of one structure: the layers of a model change together."""
    members = set(search.alike[chance.randrange(len(parent))])
    new = chance.randrange(search.counts[min(members)])
    return tuple(new if k in members else c for k, c in enumerate(parent))


def _settled(search: Pareto, parent: Chosen, chance: random.Random) -> Chosen:
    """The fastest candidate for one node, given its neighbours."""
    return _fastest(search, parent, chance.randrange(len(parent)))


def _followed(search: Pareto, parent: Chosen, chance: random.Random) -> Chosen:
    """Another candidate for one node, and then the fastest for each of its neighbours: they leave a valley together."""
    k = chance.randrange(len(parent))
    child = (*parent[:k], chance.randrange(search.counts[k]), *parent[k + 1 :])
    into, out = search.tables.into[k], search.tables.out[k]
    for near in (*(edge.maker for edge in into), *(edge.reader for edge in out)):
        child = _fastest(search, child, near)
    return child


def _fastest(search: Pareto, parent: Chosen, k: int) -> Chosen:
    tables = search.tables
    total = tables.alone[k].seconds.copy()
    for edge in tables.into[k]:
        total += edge.measures.seconds[parent[edge.maker]]
    for edge in tables.out[k]:
        total += edge.measures.seconds[:, parent[edge.reader]]
    return (*parent[:k], int(total.argmin()), *parent[k + 1 :])


def _crossed(search: Pareto, parent: Chosen, chance: random.Random) -> Chosen:
    """The first nodes of one parent, the others of another."""
    other, at = chance.choice(search.frontier), chance.randrange(len(parent))
    return (*parent[:at], *other[at:])


def _mixed(search: Pareto, parent: Chosen, chance: random.Random) -> Chosen:
    """Each node from one of two parents."""
    other = chance.choice(search.frontier)
    return tuple(a if chance.random() < 0.5 else b for a, b in zip(parent, other, strict=True))


for _rule in (
    Mutator("one", _one),
    Mutator("alike", _alike),
    Mutator("settled", _settled, prior=2.0),
    Mutator("followed", _followed, lambda tables: bool(tables.edges)),
    Mutator("crossed", _crossed, lambda tables: len(tables.nodes) > 1),
    Mutator("mixed", _mixed, lambda tables: len(tables.nodes) > 1),
):
    register_mutator(_rule)
