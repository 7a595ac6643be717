"""Runs a program in a child process with limits, and reads what the runtime reports."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tileweave.backends.cuda.cpu.build import INCLUDE


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or worth knowing.

    Args:
        rule: the name of the rule.
        text: what happened, with the threads.
        place: ``FILE:LINE`` of the access that showed it.
        other: ``FILE:LINE`` of the other access, if there is one.
        note: whether it is only a remark: it does not make a program wrong.
        frames: the places of `place` and `other` with the calls that were inlined there, innermost first.
    """

    rule: str
    text: str
    place: str
    other: str = ""
    note: bool = False
    frames: tuple[tuple[str, ...], tuple[str, ...]] = field(default=((), ()), compare=False, repr=False)

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        other = f" (the other access: {self.other})" if self.other else ""
        return f"{where}{'note: ' if self.note else ''}{self.rule}: {self.text}{other}"


@dataclass(frozen=True, slots=True)
class ChildOutcome:
    """How a program ended: its status, its output, what was found."""

    status: int
    output: str
    errors: str
    findings: tuple[Finding, ...]


def order_name(order: str | int) -> str:
    """The order of fibers as the runtime reads it: ``forward``, ``reversed``, or the seed of a random one."""
    return order if order in ("forward", "reversed") else str(int(order))


def run_program(
    program: Path,
    arguments: Sequence[str],
    *,
    folder: Path,
    scratch: Path,
    order: str | int = "forward",
    checking: bool = False,
    devices: int = 1,
    window: int = 8,
    seconds: int = 60,
    inherit: bool = False,
) -> ChildOutcome:
    """Runs a program that was built for the runtime.

    Args:
        program: the executable.
        arguments: its command line.
        folder: its working folder.
        scratch: where the report is written.
        order: of fibers and blocks.
        checking: whether accesses are followed; the program must be instrumented.
        devices: how many devices it sees.
        window: how many blocks are resident.
        seconds: the limit.
        inherit: whether its output goes to ours.
    """
    report = scratch / "report.jsonl"
    environment = {
        **os.environ, "TW_REPORT": str(report), "TW_ORDER": order_name(order), "TW_CHECK": str(int(checking)),
        "TW_DEVICES": str(devices), "TW_WINDOW": str(window), "TW_SECONDS": str(seconds),
    }  # fmt: skip
    pipe = None if inherit else subprocess.PIPE
    process = subprocess.Popen(
        [str(program), *arguments], cwd=folder, env=environment, stdout=pipe, stderr=pipe,
        stdin=None if inherit else subprocess.DEVNULL,
        preexec_fn=_no_core, start_new_session=not inherit,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=seconds + 20)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    records = [json.loads(line) for line in report.read_text(errors="replace").splitlines()] if report.exists() else []
    findings = _located(records, program)
    decoded = [(text or b"").decode(errors="replace") for text in (out, err)]
    return ChildOutcome(process.returncode, decoded[0], decoded[1], tuple(findings))


def _no_core() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _located(records: Sequence[Mapping[str, object]], program: Path) -> list[Finding]:
    addresses = sorted({int(str(r[key])) for r in records for key in ("pc", "other") if r[key]})
    places = _symbols(addresses, program)
    found, seen = [], set()
    for r in records:
        here, there = (tuple(places.get(int(str(r[key])), ())) for key in ("pc", "other"))
        first, second = (frames[0] if frames else "" for frames in (here, there))
        if first and (r["rule"], first, second) in seen:
            continue  # one line may be several instructions
        seen.add((r["rule"], first, second))
        found.append(Finding(str(r["rule"]), str(r["text"]), first, second, r["kind"] == "note", (here, there)))
    return found


def _symbols(addresses: Sequence[int], program: Path) -> dict[int, list[str]]:
    """``FILE:LINE`` of return addresses: the inlined frames that are not in our headers, innermost first."""
    if not addresses:
        return {}
    queries = [hex(a - 1) for a in addresses]
    try:
        done = subprocess.run(
            ["addr2line", "-a", "-i", "-e", str(program), *queries],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except OSError:
        return {}
    places: dict[int, list[str]] = {}
    current = 0
    for line in done.stdout.splitlines():
        if line.startswith("0x") and ":" not in line:
            current = int(line, 16) + 1
            continue
        place = line.split(" (")[0]
        if place.startswith(("??", str(INCLUDE))) or place.endswith(":?") or "<launch>" in place:
            continue
        places.setdefault(current, []).append(place)
    return places
