"""CuTe layout operations beside pycute in the same run, one JSON line per case (null where pycute is missing)."""

import argparse
import importlib
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from tileweave.layout import cute

ROUNDS, CALLS = 15, 400


def microseconds(call: Callable[[], Any]) -> list[float]:
    """Microseconds per call, one entry per round."""
    call()
    out = []
    for _round in range(ROUNDS):
        start = time.perf_counter()
        for _call in range(CALLS):
            call()
        out.append((time.perf_counter() - start) / CALLS * 1e6)
    return out


def cases(layout: Callable[..., Any], library: Any) -> dict[str, Callable[[], Any]]:
    a = layout((8, 4, 16, 2), (1, 512, 8, 128))
    b = layout((4, 2, 8, 4), (1, 4, 32, 8))
    fat = layout((2, 2, 4, 1, 4, 8), (1, 2, 4, 7, 16, 128))
    tile = layout((4, 8), (1, 32))
    return {
        "composition, 4 modes": lambda: library.composition(a, b),
        "coalesce, 6 modes": lambda: library.coalesce(fat),
        "complement": lambda: library.complement(tile, 1024),
        "logical_divide": lambda: library.logical_divide(a, tile),
        "logical_product": lambda: library.logical_product(tile, b),
        "right_inverse": lambda: library.right_inverse(b),
        "evaluate at an integer": lambda: a(777),
        "construct, 4 modes": lambda: layout((8, 4, 16, 2), (1, 512, 8, 128)),
    }


def main() -> None:
    try:
        pycute = importlib.import_module("pycute")
    except ImportError:
        pycute = None
    ours = cases(cute.CuteLayout, cute)
    theirs = cases(pycute.Layout, pycute) if pycute else {}
    for name, call in ours.items():
        times = microseconds(call)
        peer = statistics.median(microseconds(theirs[name])) if name in theirs else None
        median = statistics.median(times)
        row = {
            "bench": "cute",
            "case": name,
            "median_microseconds": round(median, 3),
            "spread_microseconds": round(max(times) - min(times), 3),
            "peer": "pycute",
            "peer_microseconds": None if peer is None else round(peer, 3),
            "ratio": None if peer is None else round(median / peer, 3),
        }
        print(json.dumps(row))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
