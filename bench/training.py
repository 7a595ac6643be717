"""Training steps at the user's call, beside PyTorch eager and JAX with their own defaults.

    python bench/training.py [--threads 1 2] [--rounds 15] [--only NAME] > bench/results/training.jsonl

A step takes arrays of inputs and targets, and leaves new weights (plain gradient descent) and the loss; all three
libraries begin with the same weights, and the losses of the first steps are compared. A process has one number of
threads, so that JAX keeps to it too. A row has the medians of steps taken in turn, each timed behind an untimed one of
the same library, whose threads are then awake, and the ratios peer / ours.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
RATE = 0.05
STEPS = 3
"""Whose losses are compared."""
WIDTH, HEADS = 256, 4


class Net:
    """A network in three libraries: weights, a batch, and the loss as each library's function of tensors by name."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.random = np.random.default_rng(0)

    def draw(self, *shape: int) -> np.ndarray:
        """Weights of a layer."""
        fan = int(np.prod(shape[1:])) if len(shape) == 4 else shape[0]
        return (self.random.standard_normal(shape) * np.sqrt(1 / fan)).astype(np.float32)

    def onehot(self) -> np.ndarray:
        """Random targets of ten classes."""
        return np.eye(10, dtype=np.float32)[self.random.integers(0, 10, self.batch)]


class Digits(Net):
    """64 -> 96 -> 10, as in examples/digits.py."""

    def arrays(self) -> tuple[Arrays, Arrays]:
        """Weights and data."""
        weights = {"w1": self.draw(64, 96), "b1": np.zeros(96, np.float32)}
        weights |= {"w2": self.draw(96, 10), "b2": np.zeros(10, np.float32)}
        return weights, {"x": self.random.random((self.batch, 64), np.float32), "y": self.onehot()}

    def tileweave(self, tw: Any, p: Any) -> Any:
        """The loss."""
        logits = tw.linear(tw.relu(tw.linear(p["x"], p["w1"], p["b1"])), p["w2"], p["b2"])
        return -tw.mean(tw.sum(tw.log_softmax(logits) * p["y"], axis=1))

    def torch(self, t: Any, p: Any) -> Any:
        """The loss."""
        logits = t.relu(p["x"] @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
        return -(t.log_softmax(logits, 1) * p["y"]).sum(1).mean()

    def jax(self, jax: Any, p: Any) -> Any:
        """The loss."""
        logits = jax.nn.relu(p["x"] @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
        return -(jax.nn.log_softmax(logits, 1) * p["y"]).sum(1).mean()


class Convolutional(Net):
    """Two convolutions with pooling and a linear layer on images of 28 x 28."""

    def arrays(self) -> tuple[Arrays, Arrays]:
        """Weights and data."""
        weights = {"f1": self.draw(16, 1, 3, 3), "f2": self.draw(32, 16, 3, 3), "w": self.draw(32 * 49, 10)}
        weights |= {"b1": np.zeros(16, np.float32), "b2": np.zeros(32, np.float32), "b": np.zeros(10, np.float32)}
        return weights, {"x": self.random.random((self.batch, 1, 28, 28), np.float32), "y": self.onehot()}

    def tileweave(self, tw: Any, p: Any) -> Any:
        """The loss."""
        h = p["x"]
        for n in "12":
            h = tw.max_pool(tw.relu(tw.conv(h, p[f"f{n}"], p[f"b{n}"], padding="same")), 2)
        logits = tw.linear(tw.reshape(h, (self.batch, -1)), p["w"], p["b"])
        return -tw.mean(tw.sum(tw.log_softmax(logits) * p["y"], axis=1))

    def torch(self, t: Any, p: Any) -> Any:
        """The loss."""
        h, f = p["x"], t.nn.functional
        for n in "12":
            h = f.max_pool2d(t.relu(f.conv2d(h, p[f"f{n}"], p[f"b{n}"], padding="same")), 2)
        return -(t.log_softmax(h.flatten(1) @ p["w"] + p["b"], 1) * p["y"]).sum(1).mean()

    def jax(self, jax: Any, p: Any) -> Any:
        """The loss."""
        h = p["x"]
        for n in "12":
            h = jax.lax.conv(h, p[f"f{n}"], (1, 1), "SAME") + p[f"b{n}"][:, None, None]
            h = jax.lax.reduce_window(jax.nn.relu(h), -np.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        logits = h.reshape(self.batch, -1) @ p["w"] + p["b"]
        return -(jax.nn.log_softmax(logits, 1) * p["y"]).sum(1).mean()


class Block(Net):
    """A block as in GPT-2, on 128 places: norm, causal attention of four heads, norm, two linear layers with gelu."""

    def arrays(self) -> tuple[Arrays, Arrays]:
        """Weights and data."""
        weights = {"qkv": self.draw(WIDTH, 3 * WIDTH), "mix": self.draw(WIDTH, WIDTH)}
        weights |= {"up": self.draw(WIDTH, 4 * WIDTH), "down": self.draw(4 * WIDTH, WIDTH)}
        for n in "12":
            weights |= {f"s{n}": np.ones(WIDTH, np.float32), f"t{n}": np.zeros(WIDTH, np.float32)}
        shape = (self.batch, 128, WIDTH)
        return weights, {"x": self.random.random(shape, np.float32), "y": self.random.random(shape, np.float32)}

    def tileweave(self, tw: Any, p: Any) -> Any:
        """The loss."""
        x, shape = p["x"], (self.batch, 128, HEADS, WIDTH // HEADS)
        parts = tw.split(tw.nn.layer_norm(x, p["s1"], p["t1"]) @ p["qkv"], 3, axis=-1)
        q, k, v = (tw.swapaxes(tw.reshape(part, shape), 1, 2) for part in parts)
        mixed = tw.reshape(tw.swapaxes(tw.nn.attention(q, k, v, causal=True), 1, 2), x.shape)
        x = x + mixed @ p["mix"]
        x = x + tw.nn.gelu(tw.nn.layer_norm(x, p["s2"], p["t2"]) @ p["up"], "tanh") @ p["down"]
        return tw.mean((x - p["y"]) * (x - p["y"]))

    def torch(self, t: Any, p: Any) -> Any:
        """The loss."""
        x, f, shape = p["x"], t.nn.functional, (self.batch, 128, HEADS, WIDTH // HEADS)
        parts = (f.layer_norm(x, (WIDTH,), p["s1"], p["t1"]) @ p["qkv"]).chunk(3, -1)
        q, k, v = (part.reshape(shape).swapaxes(1, 2) for part in parts)
        mixed = f.scaled_dot_product_attention(q, k, v, is_causal=True).swapaxes(1, 2).reshape(x.shape)
        x = x + mixed @ p["mix"]
        x = x + f.gelu(f.layer_norm(x, (WIDTH,), p["s2"], p["t2"]) @ p["up"], approximate="tanh") @ p["down"]
        return ((x - p["y"]) ** 2).mean()

    def jax(self, jax: Any, p: Any) -> Any:
        """The loss."""
        x, shape = p["x"], (self.batch, 128, HEADS, WIDTH // HEADS)

        def norm(x: Any, n: str) -> Any:
            mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
            return (x - mean) * jax.lax.rsqrt(var + 1e-5) * p[f"s{n}"] + p[f"t{n}"]

        parts = jax.numpy.split(norm(x, "1") @ p["qkv"], 3, -1)
        mixed = jax.nn.dot_product_attention(*(part.reshape(shape) for part in parts), is_causal=True)
        x = x + mixed.reshape(x.shape) @ p["mix"]
        x = x + jax.nn.gelu(norm(x, "2") @ p["up"], approximate=True) @ p["down"]
        return ((x - p["y"]) ** 2).mean()


NETS: dict[str, Callable[[], Net]] = {
    "digits, batch 32": lambda: Digits(32),
    "digits, batch 1198": lambda: Digits(1198),
    "convolutional, batch 32": lambda: Convolutional(32),
    "GPT-2 block, batch 4": lambda: Block(4),
}
Step = Callable[[], float]


def ours(net: Net, weights: Arrays, data: Arrays, threads: int) -> tuple[Step, dict[str, float]]:
    """A step of tileweave, and the seconds of the plan."""
    import tileweave as tw

    state = {name: value.copy() for name, value in weights.items()}
    begin = time.perf_counter()
    p = {name: tw.source(name=name, shape=v.shape, dtype=v.dtype) for name, v in {**state, **data}.items()}
    loss = net.tileweave(tw, p)  # type: ignore[attr-defined]
    slopes = tw.grad(loss, [p[name] for name in state])
    plan = tw.plan([loss, *(p[name] - RATE * slope for name, slope in zip(state, slopes, strict=True))])
    seconds = {"plan": round(time.perf_counter() - begin, 3)}
    bind, into = {**state, **data}, [None, *state.values()]
    return lambda: float(tw.run(plan, bind=bind, out=into, threads=threads)[0]), seconds


def of_torch(net: Net, weights: Arrays, data: Arrays, threads: int) -> tuple[Step, dict[str, float]]:
    """A step of PyTorch eager."""
    import torch

    torch.set_num_threads(threads)
    state = {name: torch.tensor(value, requires_grad=True) for name, value in weights.items()}
    given = {name: torch.from_numpy(value) for name, value in data.items()}
    descent = torch.optim.SGD(state.values(), lr=RATE)

    def step() -> float:
        descent.zero_grad()
        loss = net.torch(torch, {**state, **given})  # type: ignore[attr-defined]
        loss.backward()
        descent.step()
        return loss.item()

    return step, {}


def of_jax(net: Net, weights: Arrays, data: Arrays, threads: int) -> tuple[Step, dict[str, float]]:
    """A step of JAX, jitted, weights donated."""
    import jax

    def loss(state: Any, given: Any) -> Any:
        return net.jax(jax, {**state, **given})  # type: ignore[attr-defined]

    def update(state: Any, given: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(state, given)
        return value, {name: state[name] - RATE * slopes[name] for name in state}

    begin = time.perf_counter()
    held = {name: jax.numpy.array(value) for name, value in weights.items()}
    jitted = jax.jit(update, donate_argnums=0).lower(held, data).compile()
    seconds = {"compile": round(time.perf_counter() - begin, 3)}

    def step() -> float:
        nonlocal held
        value, held = jitted(held, data)
        jax.block_until_ready(held)
        return float(value)

    return step, seconds


LIBRARIES = {"tileweave": ours, "torch": of_torch, "jax": of_jax}


def measured(name: str, threads: int, rounds: int) -> dict[str, Any]:
    """A row."""
    net = NETS[name]()
    weights, data = net.arrays()  # type: ignore[attr-defined]
    made = {n: f(net, weights, data, threads) for n, f in LIBRARIES.items() if n == "tileweave" or find_spec(n)}
    steps = {n: step for n, (step, _) in made.items()}
    begin = time.perf_counter()
    losses = {"tileweave": [steps["tileweave"]()]}
    first = time.perf_counter() - begin
    for n, step in steps.items():
        losses[n] = [*losses.get(n, []), *(step() for _ in range(STEPS))][:STEPS]
    times: dict[str, list[float]] = {n: [] for n in steps}
    for turn in range(rounds):
        for n in sorted(steps, reverse=turn % 2 == 1):
            steps[n]()
            begin = time.perf_counter()
            steps[n]()
            times[n].append(time.perf_counter() - begin)
    medians = {n: statistics.median(t) for n, t in times.items()}
    return {
        "training": name,
        "threads": threads,
        "ms": {n: round(m * 1e3, 3) for n, m in medians.items()},
        "least_ms": {n: round(min(t) * 1e3, 3) for n, t in times.items()},
        "times": {n: round(m / medians["tileweave"], 3) for n, m in medians.items() if n != "tileweave"},
        "losses": {n: [round(x, 5) for x in own] for n, own in losses.items()},
        "seconds": {n: s for n, (_, s) in made.items()} | {"first run": round(first, 3)},
        "date": time.strftime("%Y-%m-%d"),
    }


def main() -> int:
    """Print a JSON line per row; a process per number of threads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="networks whose name holds this")
    options = parser.parse_args()
    if len(options.threads) > 1:
        for threads in options.threads:
            own = ["--threads", str(threads), "--rounds", str(options.rounds), "--only", options.only]
            subprocess.run([sys.executable, __file__, *own], check=True)
        return 0
    threads = options.threads[0]
    os.environ["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}"
    os.environ["NPROC"] = str(threads)
    for name in NETS:
        if options.only in name:
            print(json.dumps(measured(name, threads, options.rounds)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
