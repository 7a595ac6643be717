"""One access to memory, checked: in bounds, on this device, initialised, ordered behind what it conflicts with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np

from tileweave.errors import VerifyError
from tileweave.kernel.ir import Line, Region
from tileweave.kernel.semantics.clocks import Clock, Event
from tileweave.kernel.semantics.memory import UNWRITTEN, Box, ReadMark, Storage, overlap

Array = np.ndarray[Any, Any]
PRIVATE = ("register", "sbuf", "psum")
"""Memory whose accesses are ordered as they are written: by the thread, or by the engines that share a tile."""
BY_LANE = "lanes of tensor memory"
"""How accesses of tensor memory lie: each thread of a warpgroup reaches its own lane only."""


def refuse(rule: str, problem: str, line: Line, **inputs: object) -> NoReturn:
    """Raise the error of a claim that does not hold."""
    legal = str(inputs.pop("legal", ""))
    rows = {key.replace("_", " "): value for key, value in inputs.items()}
    if line.number:
        rows["line"] = line
    raise VerifyError("check(kernel)", problem, inputs={"rule": rule, **rows}, legal=legal,
                      facts={"rule": rule, "path": "", "line": line})  # fmt: skip


class RegionAccess:
    """A region at the numbers of this moment.

    Args:
        region: what is accessed.
        begin, valid, skip: per dimension of the tensor, numbers.
        who: what errors call the threads.
    """

    __slots__ = ("begin", "box", "empty", "region", "skip", "storage", "valid")

    def __init__(
        self, region: Region, storage: Storage, begin: tuple[int, ...], valid: tuple[int, ...],
        skip: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        self.region = region
        self.storage = storage
        self.begin = begin
        self.valid = tuple(max(0, min(v, e)) for v, e in zip(valid, region.extent, strict=True))
        self.skip = skip or (0,) * len(begin)
        self.empty = any(v <= s for v, s in zip(self.valid, self.skip, strict=True))
        self.box: Box = tuple((b + s, b + max(s, v)) for b, v, s in zip(begin, self.valid, self.skip, strict=True))

    def require_inside(self, who: str, line: Line, device: int) -> None:
        """In bounds, and on this device."""
        if self.empty:
            return
        shape = self.region.tensor.shape
        for d, ((first, last), size) in enumerate(zip(self.box, shape, strict=True)):
            if first < 0 or last > size:
                at = [b for b, _ in self.box]
                at[d] = first if first < 0 else last - 1
                refuse(
                    "bounds", f"{self.region.tensor.name}{at} is outside shape {list(shape)}", line, region=self.region,
                    threads=who, legal="a mask: tile(..)[..] has one; begin + valid within the shape",
                )  # fmt: skip
        if self.storage.devices is not None and self.region.tensor.space == "global":
            held = self.storage.devices[tuple(slice(a, b) for a, b in self.box)]
            if (held != device).any():
                other = int(held[held != device][0])
                at = [int(b + x) for (b, _), x in zip(self.box, np.argwhere(held != device)[0], strict=True)]
                refuse(
                    "device", f"{self.region.tensor.name}{at} is on device {other}", line,
                    threads=f"{who} of device {device}", legal="its own shard, or symmetric memory",
                )  # fmt: skip

    def values(self) -> Array:
        """The elements as the region shows them; what does not exist is zero."""
        found = self.storage.read(self.box)
        if self.valid != self.region.extent or any(self.skip):
            padded = np.zeros(self.region.extent, found.dtype)
            padded[self._there()] = found
            found = padded
        return self._turned(found)

    def exists(self) -> Array | None:
        """Which elements exist, as the region shows them; None: all."""
        if self.valid == self.region.extent and not any(self.skip):
            return None
        made = np.zeros(self.region.extent, bool)
        made[self._there()] = True
        return self._turned(made)

    def _there(self) -> tuple[slice, ...]:
        """The part of the region that exists."""
        return tuple(slice(s, max(s, v)) for s, v in zip(self.skip, self.valid, strict=True))

    def _turned(self, values: Array) -> Array:
        dims = self.region.dims
        hidden = [d for d in range(values.ndim) if d not in dims]
        return values.transpose(*dims, *hidden).reshape([values.shape[d] for d in dims])

    def put(self, values: Array) -> None:
        """Write the elements that exist, given as the region shows them."""
        if self.empty:
            return
        dims, extent = self.region.dims, self.region.extent
        shown = np.broadcast_to(values, self.region.shape)
        turned = shown.reshape([*shown.shape, *[1] * (len(extent) - len(dims))])
        order = [*dims, *[d for d in range(len(extent)) if d not in dims]]
        whole = turned.transpose(np.argsort(order)) if order else turned
        self.storage.write(self.box, whole[self._there()])


class Ledger:
    """Every event of a run by number, and the rules about pairs of them."""

    def __init__(self, written: Iterable[str]) -> None:
        self.events: list[Event | None] = [None]
        self.written = frozenset(written)
        self.accesses = 0

    def read(self, access: RegionAccess, event: Event, clocks: list[Clock], fenced: list[Clock]) -> None:
        """Note a read; raise where a value was never written, or its writer is not ordered before it."""
        self.accesses += 1
        if access.empty:
            return
        writers = access.storage.writers[tuple(slice(a, b) for a, b in access.box)]
        for number in _distinct(writers):
            if number == UNWRITTEN:
                at = self._element(access, writers, number)
                refuse(
                    "initialised", f"{at} is read and was never written", event.line, reader=event.text,
                    threads=event.label, legal="zeros, a copy, or a mask that leaves it out",
                )  # fmt: skip
            self._require(number, access, writers, event, clocks, fenced)
        if access.region.tensor.name in self.written and access.region.tensor.space not in PRIVATE:
            reads = access.storage.reads
            if reads and reads[-1].box == access.box and reads[-1].event.who[0][0] == event.who[0][0]:
                if len(reads[-1].event.who) == len(event.who):
                    reads.pop()
            reads.append(ReadMark(access.box, event))

    def write(self, access: RegionAccess, event: Event, clocks: list[Clock], fenced: list[Clock]) -> None:
        """Note a write; raise where an earlier access is not ordered before it."""
        self.accesses += 1
        if access.empty:
            return
        at = tuple(slice(a, b) for a, b in access.box)
        self.events.append(event)
        if access.region.tensor.space not in PRIVATE:
            writers = access.storage.writers[at]
            for number in _distinct(writers):
                if number > 0:
                    self._require(number, access, writers, event, clocks, fenced)
            kept = []
            for one in access.storage.reads:
                common = overlap(one.box, access.box)
                if common is None:
                    kept.append(one)
                    continue
                same_thread = _same_threads(one.event, event) and (one.box == access.box or event.held == BY_LANE)
                if not same_thread and not all(one.event.before(clock) for clock in clocks):
                    self._race(access, [a for a, _ in common], one.event, event)
                if common != one.box:
                    kept.append(one)
            access.storage.reads[:] = kept
        access.storage.writers[at] = len(self.events) - 1

    def _require(self, number: int, access: RegionAccess, writers: Array, event: Event, clocks: list[Clock],
                 fenced: list[Clock]) -> None:  # fmt: skip
        earlier = self.events[number]
        if earlier is None or access.region.tensor.space in PRIVATE:
            return
        if event.held == BY_LANE and _same_threads(earlier, event):
            return
        if not all(earlier.before(clock) for clock in clocks):
            found = np.argwhere(writers == number)[0]
            self._race(access, [b + int(x) for (b, _), x in zip(access.box, found, strict=True)], earlier, event)
        if event.asynchronous and not earlier.asynchronous and access.region.tensor.space == "shared":
            if not all(earlier.before(clock) for clock in fenced):
                refuse(
                    "proxy", f"{self._element(access, writers, number)} was written by threads and is read by the "
                    "asynchronous proxy without a fence between", event.line, first=f"{earlier.text} at {earlier.line}",
                    second=event.text, legal='fence("proxy.async") by the writers, then a sync',
                )  # fmt: skip

    def _race(self, access: RegionAccess, at: list[int], earlier: Event, later: Event) -> None:
        name = access.region.tensor.name
        what = f"{name}{at}"
        if earlier.asynchronous:
            refuse(
                "completion", f"{what}: the copy that {earlier.kind}s it is not known to be complete when it is "
                f"{'read' if later.kind == 'read' else 'written'}", later.line,
                first=f"{earlier.text} at {earlier.line}, {earlier.label}", second=f"{later.text}, {later.label}",
                legal="a wait on its barrier or group, and a sync where other threads issued it",
            )  # fmt: skip
        refuse(
            "race", f"{what} is {earlier.kind if earlier.kind == 'read' else 'written'} and then "
            f"{'read' if later.kind == 'read' else 'written'}, and nothing orders the two", later.line,
            first=f"{earlier.text} at {earlier.line}, {earlier.label}", second=f"{later.text}, {later.label}",
            legal="a sync, a barrier or a signal between them",
        )  # fmt: skip

    def _element(self, access: RegionAccess, writers: Array, number: int) -> str:
        found = np.argwhere(writers == number)[0]
        return f"{access.region.tensor.name}{[b + int(x) for (b, _), x in zip(access.box, found, strict=True)]}"


def _same_threads(earlier: Event, later: Event) -> bool:
    """Whether two accesses of an element are of one thread, since the registers of both lie alike."""
    same = later.held and earlier.held == later.held and earlier.who[0][0] == later.who[0][0]
    return bool(same) and len(earlier.who) == len(later.who)


def _distinct(numbers: Array) -> list[int]:
    """The different numbers of an array; mostly there is one."""
    first = numbers.flat[0]
    if numbers.size == 1 or (numbers == first).all():
        return [int(first)]
    return [int(n) for n in np.unique(numbers)]
