"""Graphs that were run, by their forms: a further one that differs in extents alone is bound to what is known.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tileweave.backends.base import Resizable
from tileweave.graph import Graph, Source
from tileweave.kept import keep_last
from tileweave.lower.actions import WorkFailed
from tileweave.lower.again.bound import bind_again, run_again
from tileweave.lower.again.form import GraphForm, form_of
from tileweave.lower.again.outline import Outline
from tileweave.lower.again.outlining import outline_of
from tileweave.lower.binding import TaskBinding
from tileweave.lower.executable import Executable
from tileweave.lower.forms import descent_of
from tileweave.runtime.direct import Found, Idle, Watch, check_out, run

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class KnownForms:
    """What is known of some graphs.

    Args:
        brought: whether every run brings the array of a source of these graphs.
        most: how many forms are known, the last used ones, and how many bindings.
        most_bytes: that bindings hold, and constants of the forms.
        apart: whether bindings may be all that holds the constants of their graphs: these count then, too.
        outlines: by form; None where one was met once, or where nothing can be said of it.
        bindings: by form, sizes and how arrays lie: what runs use, nothing yet where they were met once; the bytes that
            it and the sizes hold; and the kernels that wait for code of their own before there is a binding.
    """

    brought: Callable[[Source], bool]
    most: int
    most_bytes: int
    apart: bool = True
    outlines: dict[Hashable, Outline | None] = field(default_factory=dict)
    bindings: dict[Hashable, tuple[Idle, int, Sequence[Resizable]]] = field(default_factory=dict)

    def found(
        self, form: GraphForm, key: Hashable, name: Hashable, arrays: Callable[[int], Array], *, new: bool
    ) -> Found | list[Array] | None:
        """What runs a graph, or its results where it is met for the first time: nothing that would serve another run is
        made before it comes again. None where nothing known serves.

        Args:
            form: of the graph.
            key: equal for graphs that are planned and fused alike whatever their extents.
            name: equal for graphs of one key that have the same sizes.
            arrays: the array for the source at a place.
            new: whether results are new arrays.
        """
        outline = self.outlines.get(key)
        if outline is None:
            return None
        given = tuple([arrays(place) for place in outline.bound])
        which = (key, name, *[(one.strides, one.flags.aligned) for one in given])
        idle, size, wait = self.bindings.pop(which, (None, 0, ()))
        constants = [form.order[place].data.array.nbytes for place in outline.constant] if self.apart else ()
        wait = [one for one in wait if one.own() is None]
        if (idle is None or wait) and new:
            ran = run_again(outline, form, given)
            if ran is not None:
                self._keep_binding(which, Idle(), sum(constants), wait or ran[1])
                return ran[0]
        idle = idle or Idle()
        executable = None
        if idle:
            with suppress(IndexError):  # two runs at once never share one
                executable = idle.pop()
        if executable is None:
            made = bind_again(outline, form, given)
            if made is None:
                return None
            executable = Executable(outline.tasks, made)
            size = made.bytes + sum(constants)
        self._keep_binding(which, idle, size)
        return Found(executable, given, idle)

    def _keep_binding(self, which: Hashable, idle: Idle, size_bytes: int, wait: Sequence[Resizable] = ()) -> None:
        if size_bytes > self.most_bytes:
            return
        self.bindings[which] = idle, size_bytes, wait
        keep_last(self.bindings, self.most)
        while size_bytes and sum([size for _, size, _ in tuple(self.bindings.values())]) > self.most_bytes:
            keep_last(self.bindings, len(self.bindings) - 1)

    @staticmethod
    def ran(found: Found, graph: Graph, out: Any) -> list[Any] | None:
        """The results of what was `found`; None as of `direct.run`.

        Args:
            found: what runs.
            graph: whose results they are.
            out: as of `tileweave.run`.
        """
        given = check_out(graph, [out] if isinstance(out, np.ndarray) else out)
        try:
            if out is not None:
                return run(found, given)
            results = found.executable.run(found.arrays)
        except WorkFailed:  # the run of a plan says why
            return None
        found.idle.append(found.executable)
        return results

    def watch(self, form: GraphForm, key: Hashable, memory_bytes: int, *, soon: bool = False) -> Watch | None:
        """What takes the binding of a graph's plan, for further graphs; None for a form that is met for the first time,
        unless it is wanted ``soon``."""
        if key not in self.outlines and not soon:
            self._keep(key, None)
            return None
        own = form.key

        def watch(fused: Graph, made: TaskBinding) -> None:
            descent = descent_of(fused)
            if descent is None:
                return
            first, places = descent
            like = form_of(first, self.brought)
            if like is None or like.key != own:
                return
            self._keep(key, outline_of(like, first, fused, places, made, memory_bytes))

        return watch

    def _keep(self, key: Hashable, outline: Outline | None) -> None:
        self.outlines.pop(key, None)
        if outline is None or outline.bytes <= self.most_bytes:
            self.outlines[key] = outline
        keep_last(self.outlines, self.most)
        held = [0 if one is None else one.bytes for one in tuple(self.outlines.values())]
        while sum(held) > self.most_bytes and held:
            keep_last(self.outlines, len(held) - 1)
            del held[0]
