"""Rings of stages in shared memory: mbarriers whose counts, bytes and parities follow from who fills and who uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tileweave.index import Expr
from tileweave.kernel.build.flow import Filling
from tileweave.kernel.build.recorder import Recorder
from tileweave.kernel.build.views import as_number
from tileweave.kernel.ir import Arrive, Commit, Fence, Init, Line, Number, Region, Scope, Statement, Sync, Wait, When
from tileweave.layout import strided


class Ring:
    """A ring of stages: ``with ring.fill(i) as s:`` and ``with ring.use(i) as s:`` for step i of its life.

    A stage has two mbarriers: *full* counts one arrival per filling scope, with the bytes of its copies; *empty*
    counts one per warp that uses the stage. Step i waits for the phase that step i - stages has freed. Where blocks of
    a cluster fill each other's stages, a stage is let go at the *empty* barriers of all of them.
    """

    def __init__(self, recorder: Recorder, stages: int, fills: int | None, uses: int | None, blocks: int = 1,
                 products: bool = False, pair: bool = False) -> None:  # fmt: skip
        self._recorder = recorder
        self._stages = stages
        self._blocks = blocks
        self._products = products
        self._pair = pair
        self._claims = {"fill": fills, "use": uses}
        self._scopes: dict[str, list[Scope]] = {"fill": [], "use": []}
        self._line = recorder.line()
        name = recorder.target(0, "ring")
        layout = strided((stages,), (1,))
        self._full = recorder.alloc((stages,), "mbarrier", "shared", layout, name=f"{name}_full").tensor
        self._empty = recorder.alloc((stages,), "mbarrier", "shared", layout, name=f"{name}_empty").tensor
        recorder.defer(self._inits)

    def _inits(self) -> list[Statement]:
        """The start of the barriers, once it is known who arrives."""
        counts = {"fill": sum(s.entities for s in self._scopes["fill"])}
        counts["use"] = self._blocks * sum(s.threads // 32 for s in self._scopes["use"])
        if self._products:
            counts["use"] = self._blocks * len(self._scopes["use"])
        for what, claimed in self._claims.items():
            found = sum(s.entities for s in self._scopes[what])
            if not found or (claimed is not None and claimed != found):
                does = f"1 scope {what}s" if found == 1 else f"{found} scopes {what}"
                self._recorder.refuse(
                    "k.pipeline(stages, fills, uses)", f"{'some' if claimed is None else claimed} {what}s were "
                    f"declared, {does} it", line=self._line, legal=f"{what}s={found}" if found else "", rule="ring",
                )  # fmt: skip
        line, inits = self._line, list[Statement]()
        for stage in range(self._stages):
            inits.append(Init(self._at(self._full, stage), counts["fill"], line=line))
            inits.append(Init(self._at(self._empty, stage), counts["use"], line=line))
        return [*inits, Fence("mbarrier_init", line=line), Sync(cluster=self._blocks > 1 or self._pair, line=line)]

    def _at(self, tensor: Any, stage: Number) -> Region:
        return Region(tensor, (stage,), (1,), (1,), ())

    def _step(self, step: Any) -> tuple[Number, Number]:
        if not isinstance(step, int | Expr):
            self._recorder.refuse("ring.fill(step)", f"{step!r} is no index", legal="the counter of the loop")
        return as_number(step % self._stages), as_number(step // self._stages)

    def _note(self, what: str) -> None:
        scope = self._recorder.scope
        if scope is None:
            self._recorder.refuse(f"ring.{what}(step)", "no scope executes it", legal="inside a scope's `with`")
        if scope.scope not in self._scopes[what]:
            self._scopes[what].append(scope.scope)

    @contextmanager
    def fill(self, step: Number) -> Iterator[Number]:
        """Wait until the stage is free, announce the bytes of the asynchronous copies inside that complete on it."""
        stage, turn = self._step(step)
        self._note("fill")
        line, recorder = self._recorder.line(), self._recorder
        recorder.emit(Wait(self._at(self._empty, stage), as_number((turn + 1) % 2), line=line))
        recorder.stage = inner = Filling(self._at(self._full, stage), self._pair)
        recorder.defer(lambda: self._announced(inner, line))
        try:
            yield stage
        finally:
            recorder.stage = None

    def _announced(self, filled: Filling, line: Line) -> list[Statement]:
        if filled.shared_by > 1 and self._blocks == 1:
            self._recorder.refuse(
                "ring.fill(step)", f"a stage is filled by {filled.shared_by} blocks of the cluster, and freed by one",
                legal="k.pipeline(stages, cluster=True)", rule="ring", line=line,
            )  # fmt: skip
        if self._pair:  # the bytes of both blocks come to the barrier of the first one
            first = self._recorder.grid.block % 2 < 1  # type: ignore[union-attr]
            return [When(first, (Arrive(filled.full, "one", 2 * filled.bytes, line=line),), line=line)]
        return [Arrive(filled.full, "one", filled.bytes or None, line=line)]

    @contextmanager
    def use(self, step: Number) -> Iterator[Number]:
        """Wait until the stage is full; at the end give it back."""
        stage, turn = self._step(step)
        self._note("use")
        line: Line = self._recorder.line()
        self._recorder.emit(Wait(self._at(self._full, stage), as_number(turn % 2), line=line))
        yield stage
        if self._products:
            mask = 3 if self._pair else None
            self._recorder.emit(Commit("tcgen05", self._at(self._empty, stage), mask, line=line))
            return
        for rank in range(self._blocks):
            at = rank if self._blocks > 1 else None
            self._recorder.emit(Arrive(self._at(self._empty, stage), "warp", cta=at, line=line))
