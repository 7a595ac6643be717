"""A small convolutional network on real handwritten digits: forward pass, gradients, a few training steps.

The data is scikit-learn's own copy of the UCI handwritten digits (1,797 images of 8 x 8 pixels). Every third image is
held out. Loss and gradients of a batch are one graph, rewritten and planned once; the loop is ordinary Python.
"""

import time
from collections import Counter

import numpy as np
from sklearn.datasets import load_digits

import tileweave as tw
from tileweave.graph import OPTIMIZATIONS, Graph, conv, max_pool, rewrite

STEPS, BATCH, RATE = 40, 200, 0.015
DECAY, DECAY_OF_SQUARES = 0.8, 0.95

Arrays = dict[str, np.ndarray]


def scores(x: tw.Tensor, p: dict[str, tw.Tensor]) -> tw.Tensor:
    """conv 3x3, ReLU, pool; conv 3x3, ReLU; one linear layer."""
    h = max_pool(tw.relu(conv(x, p["filters1"], p["bias1"], padding="same")), 2)
    h = tw.relu(conv(h, p["filters2"], p["bias2"], padding="same"))
    return tw.einsum("ncxy,cxyk->nk", h, p["weights"]) + p["bias3"]


def main() -> None:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    held = np.arange(len(images)) % 3 == 0
    onehot = np.eye(10, dtype=np.float32)[labels]

    rng = np.random.default_rng(0)
    shapes = {"filters1": (8, 1, 3, 3), "filters2": (16, 8, 3, 3), "weights": (16, 4, 4, 10)}
    fans = {"filters1": 9, "filters2": 72, "weights": 256}
    values: Arrays = {n: (rng.standard_normal(s) * np.sqrt(2 / fans[n])).astype(np.float32) for n, s in shapes.items()}
    values |= {name: np.zeros(n, np.float32) for name, n in (("bias1", 8), ("bias2", 16), ("bias3", 10))}
    params = {name: tw.source(value, name=name) for name, value in values.items()}

    # one graph for every batch: images, labels and parameters are bound at each step
    y = scores(tw.source(name="images", shape=(BATCH, 1, 8, 8), dtype=np.float32), params)
    targets = tw.source(name="labels", shape=(BATCH, 10), dtype=np.float32)
    loss = -tw.mean(tw.sum(tw.log_softmax(y) * targets, axis=1))
    done = rewrite(Graph.of(loss, *tw.grad(loss, list(params.values()))), OPTIMIZATIONS)
    applied = Counter(step.rule for step in done.trace)
    print("rewritten:", ", ".join(f"{rule} x {count}" for rule, count in applied.items()))
    plan = tw.plan(done.graph)
    convs = sum(step.name == "conv" for step in plan.steps)
    print(f"one step: {plan.tasks} tasks, {convs} of them convolutions, {plan.flops / 1e6:.0f} Mflop")

    train = np.flatnonzero(~held)

    def batch() -> Arrays:
        chosen = rng.choice(train, BATCH, replace=False)
        return {"images": images[chosen], "labels": onehot[chosen]}

    check_gradient(plan, values, batch())
    begin = time.perf_counter()
    slow, squares = ({name: np.zeros_like(value) for name, value in values.items()} for _ in range(2))
    losses = []
    for step in range(1, STEPS + 1):
        now, *gradients = tw.run(plan, bind=values | batch())
        losses.append(float(now))
        for name, gradient in zip(values, gradients, strict=True):
            slow[name] = DECAY * slow[name] + (1 - DECAY) * gradient
            squares[name] = DECAY_OF_SQUARES * squares[name] + (1 - DECAY_OF_SQUARES) * gradient**2
            spread = np.sqrt(squares[name] / (1 - DECAY_OF_SQUARES**step)) + 1e-8
            values[name] = (values[name] - RATE * slow[name] / (1 - DECAY**step) / spread).astype(np.float32)
    seconds = time.perf_counter() - begin
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {STEPS} steps of {BATCH} images, {seconds:.1f} s")

    test = tw.run(scores(tw.source(images[held], name="test images"), params), bind=values)
    right = test.argmax(axis=1) == labels[held]
    print(f"held-out images: {right.sum()} of {len(right)} right, accuracy {right.mean():.2%}")
    error = np.abs(test - by_numpy(images[held].astype(np.float64), values)).max()
    print(f"largest difference of the scores from NumPy: {error:.1e}")
    if error > 1e-3:
        raise SystemExit("the scores differ from NumPy")


def check_gradient(plan: tw.Plan, values: Arrays, batch: Arrays) -> None:
    """The gradient along itself, against the difference quotient of the loss."""
    _, *gradients = tw.run(plan, bind=values | batch)
    slope = sum(float((g.astype(np.float64) ** 2).sum()) for g in gradients)
    step = 1e-2 / np.sqrt(slope)
    losses = []
    for distance in (np.float32(step), np.float32(-step)):
        moved = {n: v + distance * g for (n, v), g in zip(values.items(), gradients, strict=True)}
        losses.append(float(tw.run(plan, bind=moved | batch)[0]))
    ahead, behind = losses
    quotient = (ahead - behind) / (2 * step)
    print(f"gradient: slope {slope:.4f} along itself, difference quotient {quotient:.4f}")
    if abs(quotient - slope) > 0.02 * slope:
        raise SystemExit("the gradient is not the slope of the loss")


def by_numpy(x: np.ndarray, p: Arrays) -> np.ndarray:
    """The forward pass in double precision, as sums of moved images."""

    def layer(x: np.ndarray, filters: np.ndarray, bias: np.ndarray) -> np.ndarray:
        wide = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
        rows, columns = x.shape[2:]
        moved = ((a, b, wide[:, :, a : a + rows, b : b + columns]) for a in range(3) for b in range(3))
        out = sum(np.einsum("ncxy,fc->nfxy", part, filters[:, :, a, b]) for a, b, part in moved)
        return np.maximum(out + bias[:, None, None], 0)

    h = layer(x, p["filters1"], p["bias1"])
    h = h.reshape(*h.shape[:2], 4, 2, 4, 2).max(axis=(3, 5))
    h = layer(h, p["filters2"], p["bias2"])
    return np.einsum("ncxy,cxyk->nk", h, p["weights"]) + p["bias3"]


if __name__ == "__main__":
    main()
