"""Two checkouts timed in one run: the rows that a refactor must not slow down.

    python bench/ab.py REVISION [--rounds 15] [--threads 1] [--only contraction]

The revision is checked out into a temporary folder. A process for each of the two runs every row in turn, so that both
meet the same moments of the machine. A line gives the median ratio of paired rounds (above 1: this tree is faster) with
the spread of the middle half; rows whose whole middle half is under 0.98 are marked.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
CONTRACTIONS = """
ij,jk->ik 512 512 512
ij,jk->ik 1000 1000 1000
ij,kj->ik 300 700 400
ij,jk->ik 8 8 8
ij,jk->ik 64 64 64
bij,bjk->bik 16 64 64 64
adb,cd->cba 96 96 96 24
aebd,ce->dcba 48 48 48 48 24
ca,bc->ba 512 512 512
fbea,ecfd->dcba 24 24 24 24 24 24
aged,cbfg->fedcba 12 12 12 12 12 12 12
abcd->dcba 40 36 32 44
abc->cab 200 160 180
ij->ji 2000 1600
ij->i 4000 1000
""".strip().splitlines()


def rows(threads: int) -> dict[str, Callable[[], Any]]:
    """Name -> a call that does the work once; only public names that both checkouts have."""
    import numpy as np

    import tileweave as tw
    from tileweave import graph, layout
    from tileweave.layout import cute

    draw = np.random.default_rng(0)
    made: dict[str, Callable[[], Any]] = {}
    for line in CONTRACTIONS:
        equation, *sizes = line.split()
        inputs, output = equation.split("->")
        letters = sorted(set(inputs) - {","})
        extent = dict(zip(letters, map(int, sizes), strict=True))
        arrays = [draw.random([extent[c] for c in term], np.float32) for term in inputs.split(",")]
        out = np.empty([extent[c] for c in output], np.float32)
        made[f"contraction {line}"] = lambda e=equation, a=arrays, o=out: tw.contract(e, *a, out=o, threads=threads)
    x = draw.random((1000, 768), np.float32)
    w, b = draw.random((768, 256), np.float32), draw.random(256, np.float32)
    programs = {
        "linear relu": lambda s: tw.relu(s(x) @ s(w) + s(b)),
        "softmax": lambda s: tw.softmax(s(x), axis=-1),
        "layer norm": lambda s: graph.layer_norm(s(x), s(np.ones(768, np.float32)), s(np.zeros(768, np.float32))),
        "chain": lambda s: tw.exp(s(x) * 2.0 - 1.0) / (1.0 + tw.absolute(s(x))),
        "row sums": lambda s: tw.sum(s(x), axis=-1),
    }
    for name, program in programs.items():
        plan = tw.plan(program(tw.source))
        made[f"run {name}"] = lambda p=plan: tw.run(p)
    a = cute.CuteLayout((8, 4, 16, 2), (1, 512, 8, 128))
    c = cute.CuteLayout((4, 2, 8, 4), (1, 4, 32, 8))
    fat = cute.CuteLayout((2, 2, 4, 1, 4, 8), (1, 2, 4, 7, 16, 128))
    s = layout.strided((8, 16, 4, 32), (2048, 4, 1, 64))
    made |= {
        "layout composition": lambda: cute.composition(a, c),
        "layout coalesce": lambda: cute.coalesce(fat),
        "layout complement": lambda: cute.complement(c, 4096),
        "layout logical_divide": lambda: cute.logical_divide(a, c),
        "layout right_inverse": lambda: cute.right_inverse(c),
        "layout evaluate": lambda: a(77),
        "layout normalize": lambda: layout.normalize(s),
        "layout slice": lambda: layout.slice_layout(s, (8, 16, 4, 32), (0, 4, 0, 8), (8, 4, 4, 8)),
    }
    return made


def serve(threads: int) -> None:
    """Answer each line (a row's name) with the seconds of one call, repeated until it takes 2 ms."""
    calls = rows(threads)
    print(json.dumps(list(calls)), flush=True)
    repeats: dict[str, int] = {}
    for line in sys.stdin:
        call = calls[line.strip()]
        if line not in repeats:
            call()
            start = time.perf_counter()
            call()
            repeats[line] = max(1, int(2e-3 / max(time.perf_counter() - start, 1e-7)))
        start = time.perf_counter()
        for _ in range(repeats[line]):
            call()
        print((time.perf_counter() - start) / repeats[line], flush=True)


class Worker:
    """A process that times rows of one checkout."""

    def __init__(self, tree: Path, threads: int) -> None:
        environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", "--threads", str(threads)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.names: list[str] = json.loads(self._line())

    def _line(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of a checkout ended with {self.process.wait()}")
        return line

    def seconds(self, name: str) -> float:
        """Seconds of one call of a row."""
        assert self.process.stdin
        print(name, file=self.process.stdin, flush=True)
        return float(self._line())


def main() -> int:
    """Time both checkouts and print a line per row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", nargs="?", default="HEAD~1")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="rows whose name holds this")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.threads)
        return 0
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        before_tree = Path(folder) / "before"
        git = ["git", "-C", str(HERE), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", str(before_tree), options.revision], check=True)
        try:
            before, after = Worker(before_tree, options.threads), Worker(HERE, options.threads)
            for name in [name for name in after.names if name in before.names and options.only in name]:
                ratios, times = [], []
                for turn in range(options.rounds):
                    pair = (before, after) if turn % 2 else (after, before)
                    seconds = {id(worker): worker.seconds(name) for worker in pair}
                    ratios.append(seconds[id(before)] / seconds[id(after)])
                    times.append(seconds[id(after)])
                low, middle, high = np.percentile(ratios, (25, 50, 75))
                mark = "  SLOWER" if high < 0.98 else ""
                print(
                    f"{name:<48} {middle:6.2f}  [{low:.2f}, {high:.2f}]  {min(times) * 1e6:10.1f} us{mark}", flush=True
                )
            for worker in (before, after):
                worker.process.stdin.close()  # type: ignore[union-attr]
                worker.process.wait()
        finally:
            subprocess.run([*git, "remove", "--force", str(before_tree)], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
