"""Several stochastic searches side by side, which exchange their frontiers at fixed numbers of trials.

What is found depends on the seed, the number of searches and the trials, not on how many processes they run in or how
fast these are.

Source: own, after Tapestry "Parallel Optimization".
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from typing import Any

from tileweave.planner.search.pareto import Chosen, Pareto, Progressed
from tileweave.planner.search.tables import Tables

EXCHANGE = 2048
"""Trials of each search between two exchanges."""


def searched_together(
    tables: Tables,
    trials: int,
    *,
    seed: int = 0,
    workers: int = 1,
    processes: int | None = None,
    start: Sequence[Chosen] = (),
    runs: float | None = None,
    progress: Callable[[Progressed], None] | None = None,
) -> Pareto:
    """The first of so many searches after all have made the trials together, or stopped.

    Args:
        tables: candidates and their costs.
        trials: of all searches.
        seed: of the random numbers.
        workers: searches.
        processes: at most so many run at a time; as many as there are processors by default.
        start: choices that all begin with.
        runs: how often the plan will run, for the rule that stops a search (`Pareto`).
        progress: called after each exchange.
    """
    searches = [Pareto(tables, seed + 1_000_003 * k, runs) for k in range(workers)]
    for search in searches:
        for chosen in start:
            search.add(chosen)
    most = min(workers, processes or os.cpu_count() or 1)
    going = True
    while trials > 0 and going:
        turn = [min(EXCHANGE, trials // workers + (k < trials % workers)) for k in range(workers)]
        trials -= sum(turn)
        going = any(_advanced(searches, turn, most))
        found = dict.fromkeys(chosen for search in searches for chosen in search.frontier)
        for search in searches:
            for chosen in found:
                search.add(chosen)
            search.sort()
        if progress is not None:
            made = sum(search.trials for search in searches)
            progress(Progressed(made, len(searches[0].frontier), tuple(searches[0].least())))
    return searches[0]


def _advanced(searches: Sequence[Pareto], turns: Sequence[int], processes: int) -> list[bool]:
    """Every search makes its trials; whether each would go on."""
    if processes == 1 or "fork" not in multiprocessing.get_all_start_methods():
        return [search.run(turn) for search, turn in zip(searches, turns, strict=True)]
    context, out = multiprocessing.get_context("fork"), []
    for first in range(0, len(searches), processes):
        running = []
        for search, turn in zip(searches[first : first + processes], turns[first : first + processes], strict=True):
            mine, theirs = context.Pipe(duplex=False)
            child = context.Process(target=_make, args=(search, turn, theirs), daemon=True)
            child.start()
            theirs.close()
            running.append((search, turn, child, mine))
        for search, turn, child, mine in running:
            try:
                goes, state = mine.recv()
                search.restore(state)
            except EOFError:  # the process died: its trials are made here, with the same result
                goes = search.run(turn)
            child.join()
            out.append(goes)
    return out


def _make(search: Pareto, turn: int, pipe: Any) -> None:
    goes = search.run(turn)
    pipe.send((goes, search.state()))
    pipe.close()
