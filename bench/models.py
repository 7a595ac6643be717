"""Forward passes of models at the user's call, beside onnxruntime and PyTorch with their own defaults.

    python bench/models.py [--threads 1 2] [--batch 1 8] [--rounds 7] [--only NAME] [--made] [--compile] [--cold]

ONNX models with real weights (PP-OCRv4 and magika, from their wheels) are compared with onnxruntime, modules with
random weights with PyTorch eager. A row has milliseconds (median and quartiles) of `tileweave.run` on a ready plan and
of the peer, in turn in one process, the ratio peer / ours, the largest difference, and the seconds of load, plan and
first run beside the creation of the peer's session. Each timed call stands behind a rest and an untimed one of the same
side: the peer's threads spin for tens of milliseconds after a call, and would take a core from whoever comes next
(magika at two threads: 10.6 ms without the rest, 6.6 with it).

`--made` measures models that are made here instead, in rows that say their kind: quantised (by onnxruntime's own
quantiser, statically as QDQ, and dynamically) and recurrent (LSTM, GRU). `--compile` compares modules with
torch.compile instead of PyTorch eager, each in a process of its own that may take `--limit` seconds; one that takes
longer, or fails, is a row that says so, and other batches and threads of that module are left out. `--cold` measures
what a process pays at first, instead of calls: load, plan and first run with an empty cache of compiled code, then in a
second process with that cache, beside the peer's session and first run, within `--limit` seconds each; and what a
symbolic model pays for widths that it has not met.
"""

from __future__ import annotations

import argparse
import compileall
import itertools
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import tileweave as tw

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "models"))
ONNX = {
    "ppocr detector": ("rapidocr_onnxruntime", "*det_infer.onnx", (3, 320, 320)),
    "ppocr recogniser": ("rapidocr_onnxruntime", "*rec_infer.onnx", (3, 48, 320)),
    "ppocr angle": ("rapidocr_onnxruntime", "*cls_infer.onnx", (3, 48, 192)),
    "magika": ("magika", "model.onnx", (2048,)),
}


FLOATS, QUANTISED = 1e-3, 0.1
"""What a result may differ from the peer's, over the largest number of it, or 1: a row with more is wrong. Steps of
quantised models round to the other side where the order of a sum differs."""
REST_SECONDS = 0.05
"""After which threads of either side that found no work have stopped to look for it."""


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of one call, and its result."""
    start = time.perf_counter()
    value = call()
    return time.perf_counter() - start, value


def row(name: str, batch: int, threads: int, rounds: int, ours: Any, peer: Any) -> dict[str, Any]:
    """A measured row; `ours` and `peer` are (set-up seconds by name, call)."""
    setup, call = ours
    peer_setup, peer_call = peer
    first, got = seconds(call)
    peer_first, expected = seconds(peer_call)
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds):
        for which in (0, 1) if turn % 2 else (1, 0):
            time.sleep(REST_SECONDS)
            (call, peer_call)[which]()
            times[which].append(seconds((call, peer_call)[which])[0])
    medians = [statistics.median(t) for t in times]
    error = max(
        float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max())
        for a, b in zip(got, expected, strict=True)
    )
    largest = max(float(np.abs(np.asarray(b, np.float64)).max()) for b in expected)
    quartiles = [[round(float(q) * 1e3, 3) for q in np.percentile(t, (25, 50, 75))] for t in times]
    return {
        "model": name,
        "batch": batch,
        "threads": threads,
        "ms": round(medians[0] * 1e3, 3),
        "quartiles_ms": quartiles[0],
        "peer_ms": round(medians[1] * 1e3, 3),
        "peer_quartiles_ms": quartiles[1],
        "times_peer": round(medians[1] / medians[0], 3),
        "largest_difference": error,
        "largest": largest,
        "seconds": {**setup, "first run": round(first, 3)},
        "peer_seconds": {**peer_setup, "first run": round(peer_first, 3)},
        "machine": platform.processor() or platform.machine(),
        "date": time.strftime("%Y-%m-%d"),
    }


def listed(value: Any) -> list[Any]:
    """The results of a run as a list."""
    return value if isinstance(value, list) else [value]


def prepared(load: Callable[[], Any], arrays: list[Any], threads: int) -> tuple[dict[str, float], Callable[[], Any]]:
    """Our side: load, plan, and a call."""
    loading, model = seconds(load)
    planning, plan = seconds(model.plan)
    bind = model.bind(*arrays)
    setup = {"load": round(loading, 3), "plan": round(planning, 3)}
    return setup, lambda: listed(tw.run(plan, bind=bind, threads=threads))


def onnx_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Models from wheels beside onnxruntime."""
    for name, (package, pattern, shape) in ONNX.items():
        spec = find_spec(package)
        if options.only not in name or spec is None or spec.origin is None:
            continue
        path = sorted(Path(spec.origin).parent.rglob(pattern))[-1]
        yield from file_rows(name, path, lambda batch, shape=shape: (batch, *shape), options)


def made_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Quantised and recurrent models beside onnxruntime."""
    import made_models

    images = {}
    for name, (package, pattern, shape) in ONNX.items():
        spec = find_spec(package)
        if len(shape) == 3 and spec is not None and spec.origin is not None:
            images[name] = sorted(Path(spec.origin).parent.rglob(pattern))[-1], shape
    with tempfile.TemporaryDirectory() as folder:
        for kind, name, path, shape in made_models.made(Path(folder), images):
            if options.only in name:
                yield from ({"kind": kind} | made for made in file_rows(name, path, shape, options))


def file_rows(name: str, path: Path, shape: Callable[[int], Any], options: argparse.Namespace) -> Iterator[Any]:
    """A model of one input, of this shape by batch, beside onnxruntime."""
    import onnxruntime

    for batch in options.batch:
        for threads in options.threads:
            settings = onnxruntime.SessionOptions()
            settings.intra_op_num_threads = threads
            settings.log_severity_level = 3
            making, session = seconds(
                lambda s=settings: onnxruntime.InferenceSession(str(path), s, providers=["CPUExecutionProvider"])
            )
            key = session.get_inputs()[0]
            dtype = np.float32 if "float" in key.type else np.int32 if "int32" in key.type else np.int64
            draw = np.random.default_rng(0).random(shape(batch)) * (1 if dtype == np.float32 else 255)
            array = draw.astype(dtype)
            ours = prepared(lambda k=key, a=array: tw.load(path, bind={k.name: a.shape}), [array], threads)
            peer = ({"session": round(making, 3)}, lambda s=session, k=key, a=array: s.run(None, {k.name: a}))
            yield row(name, batch, threads, options.rounds, ours, peer) | {"peer": "onnxruntime"}


def torch_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Modules with random weights beside PyTorch eager."""
    import torch
    from test_torch_models import NAMES, module, tensors

    for name in NAMES:
        if options.only not in name:
            continue
        for batch in options.batch:
            made, example = module(name, large=True)
            made.eval()
            example = tuple(torch.cat([x[:1]] * batch) for x in example)
            for threads in options.threads:
                torch.set_num_threads(threads)
                arrays = [x.numpy() for x in example]
                ours = prepared(lambda m=made, e=example: tw.from_torch(m, e), arrays, threads)

                fast = torch.compile(made) if options.compile else made

                def call(m: Any = fast, e: Any = example) -> list[Any]:
                    with torch.no_grad():
                        return [t.numpy() for t in tensors(m(*e))]

                compiling = {"compile": round(seconds(call)[0], 3)} if options.compile else {}
                peer = f"torch {torch.__version__}{', compiled' if options.compile else ''}"
                yield row(name, batch, threads, options.rounds, ours, (compiling, call)) | {"peer": peer}


def apart(limit_seconds: int, own: list[str], **environment: str) -> tuple[list[dict[str, Any]], str]:
    """The rows that this file prints in a process of its own, and why there are none: empty where all went well."""
    command = [sys.executable, __file__, "--here", *own]
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, said = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the compilers that it began
        process.communicate()
        return [], f"more than {limit_seconds} s"
    rows = [json.loads(line) for line in printed.splitlines()]
    return rows, "" if rows and not process.returncode else f"{said.strip().splitlines()[-1:] or 'no row'}"[:200]


def compiled_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Modules with random weights beside torch.compile, each way to run one in a process of its own."""
    from test_torch_models import NAMES

    for name in (name for name in NAMES if options.only in name):
        failed = ""
        for batch, threads in itertools.product(options.batch, options.threads):
            about = {"model": name, "batch": batch, "threads": threads, "peer": "torch, compiled"}
            if failed:
                yield about | {"failed": f"left out: another one took {failed}"}
                continue
            own = ["--compile", "--only", name, "--rounds", str(options.rounds)]
            own += ["--batch", str(batch), "--threads", str(threads)]
            rows, failed = apart(options.limit, own)
            yield from [about | {"failed": failed}] if failed else rows


def cold_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The first call of a process: without code in the cache, and with the code of the process before.

    Our modules are compiled to bytecode before, as an installed package is, and the peer's are.
    """
    compileall.compile_dir(Path(tw.__file__).parent, quiet=2)
    names = [*ONNX]
    if find_spec("torch") is not None:
        from test_torch_models import NAMES

        names += NAMES
    for name in (name for name in names if options.only in name):
        with tempfile.TemporaryDirectory() as folder:
            found, failed = list[dict[str, Any]](), ""
            for _ in range(2):
                own = ["--only", name, "--batch", "1", "--threads", "1", "--rounds", "2"]
                rows, failed = apart(options.limit, own, TILEWEAVE_CACHE=folder)
                found += rows[:1]
                if failed:
                    break
            if failed:
                yield {"model": name, "failed": failed}
                continue
            first, second = found
            yield {
                "model": name,
                "seconds": {"empty cache": first["seconds"], "second process": second["seconds"]},
                "peer": first["peer"],
                "peer_seconds": second["peer_seconds"],
                "load": round(os.getloadavg()[0], 1),
                "date": first["date"],
            }


def extent_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """New extents of a symbolic model: CPU milliseconds of reading it, of binding the plan, of the first run's code."""
    name = "ppocr recogniser"
    package, pattern, _ = ONNX[name]
    spec = find_spec(package)
    if options.only not in name or spec is None or spec.origin is None:
        return
    path = sorted(Path(spec.origin).parent.rglob(pattern))[-1]
    model: Any = tw.load(path, bind={"x": (tw.dim("batch", 1, 8), 3, 48, tw.dim("width", 32, 640))})
    plan, times = model.plan(), dict[str, list[float]]()
    for width in range(320, 480, 16):
        array = np.random.default_rng(0).random((1, 3, 48, width)).astype(np.float32)
        steps: dict[str, Callable[[], Any]] = {
            "read": lambda w=width: model.at(batch=1, width=w),
            "bind": lambda a=array: plan.bound({"x": a}),
            "first run": lambda a=array: tw.run(plan, bind={"x": a}, threads=1),
            "second run": lambda a=array: tw.run(plan, bind={"x": a}, threads=1),
        }
        for step, call in steps.items():
            start = time.process_time()
            call()
            times.setdefault(step, []).append(1e3 * (time.process_time() - start))
    medians = {step: round(statistics.median(found[1:]), 1) for step, found in times.items()}
    load = round(os.getloadavg()[0], 1)
    yield {"model": name, "new extents, CPU ms": medians, "load": load, "date": time.strftime("%Y-%m-%d")}


def main() -> int:
    """Print a JSON line per row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="models whose name holds this")
    parser.add_argument("--made", action="store_true", help="quantised and recurrent models instead")
    parser.add_argument("--compile", action="store_true", help="torch.compile instead of PyTorch eager")
    parser.add_argument(
        "--limit", type=int, default=300, help="seconds that a process may take which --cold or --compile begins"
    )
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--cold", action="store_true", help="what a process pays at first, instead of calls")
    options = parser.parse_args()
    for made in itertools.chain(cold_rows(options), extent_rows(options)) if options.cold else ():
        print(json.dumps(made), flush=True)
    wanted = [(made_rows, "onnxruntime")] if options.made else [(onnx_rows, "onnxruntime"), (torch_rows, "torch")]
    if options.compile:
        wanted = [(torch_rows if options.here else compiled_rows, "torch")]
    wrong = 0
    for rows, needs in wanted if not options.cold else ():
        if find_spec(needs) is None:
            print(f"{needs} is not installed: make test-models installs it", file=sys.stderr)
            continue
        for made in rows(options):
            print(json.dumps(made), flush=True)
            within = QUANTISED if made.get("kind") == "quantised" else FLOATS
            if made["largest_difference"] > within * max(1.0, made["largest"]):
                print(f"{made['model']}: wrong, by {made['largest_difference']:.2g}", file=sys.stderr)
                wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
