"""The layout core, one JSON line per case, beside pycute in the same run where it has the operation (else null)."""

import argparse
import importlib
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tileweave import layout as core
from tileweave.index import symbol, symbols
from tileweave.layout import Layout, axe, strided

ROUNDS = 15


def microseconds(call: Callable[[], Any], calls: int) -> list[float]:
    """Microseconds per call, one entry per round."""
    call()
    out = []
    for _round in range(ROUNDS):
        start = time.perf_counter()
        for _call in range(calls):
            call()
        out.append((time.perf_counter() - start) / calls * 1e6)
    return out


def cases() -> dict[str, tuple[Callable[[], Any], int]]:
    """Each case and how many calls one round makes."""
    a = strided((2, 16, 4, 8), (128, 8, 512, 1))  # (8,4,16,2):(1,512,8,128), row-major
    b = strided((4, 8, 2, 4), (8, 32, 4, 1))
    warp = axe.parse("(8:4@lane, 2:1@warp, 4:1@lane, 2:1@reg) + [2:4@warp] + 5@warp")
    fat = strided((8, 4, 1, 4, 2, 2), (128, 16, 7, 4, 2, 1))
    block = strided((2, 8, 3, 8), (192, 8, 64, 1))
    tile, grid = strided((8, 8), (8, 1)), strided((2, 3), (3, 1))
    index = np.arange(4096 * 4096).reshape(4096, 4096)
    wide = strided((64, 64, 64, 64), (64**3, 64, 64**2, 1))
    odd = Layout(((4096, 1), (64, 4096), (64, 1 << 20)))
    tiles, size, columns = symbols("tiles size columns", 1)
    program = symbol("program", 0, tiles)
    array = Layout(((tiles * size, columns), (columns, 1)))
    region = ((program * size, (program + 1) * size), (0, columns))
    return {
        "evaluate at an integer": (lambda: a(777), 2000),
        "canonicalize, 6 iters": (lambda: core.normalize(fat), 1000),
        "canonicalize, tensor-core tile with replicas": (lambda: core.normalize(warp), 1000),
        "composition, 4 modes": (lambda: core.compose(a, b), 500),
        "slice, aligned": (lambda: axe.slice(block, (16, 24), ((0, 8), (8, 24))), 500),
        "slice, one carry": (lambda: axe.slice(odd, (4096, 4096), ((5, 9), (32, 96))), 500),
        "slice, symbolic sizes": (lambda: axe.slice(array, (tiles * size, columns), region), 10),
        "group": (lambda: core.group(block, (16, 24)), 500),
        "tile": (lambda: core.tile(grid, (2, 3), tile, (8, 8)), 300),
        "tile_of": (lambda: core.tile_of(block, (16, 24), tile, (8, 8)), 300),
        "same_map": (lambda: core.same_map(a, b), 1000),
        "is_injective": (lambda: core.is_injective(a), 300),
        "parse": (lambda: core.parse("(8:4@lane, 2:1@warp) + [2:4@warp] + 5@warp"), 200),
        "table of 4096 x 4096 indices": (lambda: wide(index), 1),
    }


def peers(pycute: Any) -> dict[str, Callable[[], Any]]:
    """The same work in pycute, first mode fastest."""
    a = pycute.Layout((8, 4, 16, 2), (1, 512, 8, 128))
    b = pycute.Layout((4, 2, 8, 4), (1, 4, 32, 8))
    fat = pycute.Layout((2, 2, 4, 1, 4, 8), (1, 2, 4, 7, 16, 128))
    return {
        "evaluate at an integer": lambda: a(777),
        "canonicalize, 6 iters": lambda: pycute.coalesce(fat),
        "composition, 4 modes": lambda: pycute.composition(a, b),
    }


def main() -> None:
    try:
        theirs = peers(importlib.import_module("pycute"))
    except ImportError:
        theirs = {}
    for name, (call, calls) in cases().items():
        times = microseconds(call, calls)
        peer = statistics.median(microseconds(theirs[name], calls)) if name in theirs else None
        median = statistics.median(times)
        row = {
            "bench": "layout",
            "case": name,
            "median_microseconds": round(median, 3),
            "spread_microseconds": round(max(times) - min(times), 3),
            "peer": "pycute" if name in theirs else None,
            "peer_microseconds": None if peer is None else round(peer, 3),
            "ratio": None if peer is None else round(median / peer, 3),
        }
        print(json.dumps(row))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
