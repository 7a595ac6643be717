"""Train a small network on real handwritten digits: forward and backward passes are tileweave graphs.

The data is scikit-learn's own copy of the UCI handwritten digits (1,797 images of 8 x 8 pixels). Every third image is
held out. The loop is ordinary Python: each step runs one plan, which gives the loss and updates the weights and their
momentum, arrays that are bound and given as ``out``. The picture ``out/digits.svg`` is that plan.
"""

import time
from pathlib import Path

import numpy as np
from rich.progress import track
from sklearn.datasets import load_digits

import tileweave as tw

STEPS, RATE, MOMENTUM = 80, 0.8, 0.9
OUT = Path("out")


def main() -> None:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    held = np.arange(len(images)) % 3 == 0
    onehot = np.eye(10, dtype=np.float32)[labels]

    rng = np.random.default_rng(0)
    weights = {
        "w1": (rng.standard_normal((64, 96)) * np.sqrt(2 / 64)).astype(np.float32),
        "b1": np.zeros(96, np.float32),
        "w2": (rng.standard_normal((96, 10)) * np.sqrt(2 / 96)).astype(np.float32),
        "b2": np.zeros(10, np.float32),
    }
    speed = {f"speed of {name}": np.zeros_like(value) for name, value in weights.items()}
    params = [tw.source(value, name=name) for name, value in weights.items()]
    speeds = [tw.source(value, name=name) for name, value in speed.items()]

    def logits(x: tw.Tensor) -> tw.Tensor:
        w1, b1, w2, b2 = params
        return tw.linear(tw.relu(tw.linear(x, w1, b1)), w2, b2)

    # training: one graph, planned once, run at every step with the weights of that step
    y = logits(tw.source(images[~held], name="images"))
    loss = -tw.mean(tw.sum(tw.log_softmax(y) * tw.source(onehot[~held], name="labels"), axis=1))
    faster = [MOMENTUM * v - RATE * (1 - MOMENTUM) * g for v, g in zip(speeds, tw.grad(loss, params), strict=True)]
    step = tw.plan([loss, *(w + v for w, v in zip(params, faster, strict=True)), *faster])
    print(step.explain(), "\n")
    OUT.mkdir(exist_ok=True)
    (OUT / "digits.svg").write_text(step._repr_svg_(), encoding="utf-8")

    start = time.perf_counter()
    state = weights | speed
    into = [None, *state.values()]
    losses = [float(tw.run(step, bind=state, out=into)[0]) for _ in track(range(STEPS), description="training")]
    seconds = time.perf_counter() - start

    # the test: a forward pass over the held-out images, written to a file
    scores = logits(tw.source(images[held], name="test images"))
    forward = tw.plan(tw.sink(scores, OUT / "logits.npy", overwrite=True))
    written = tw.run(forward, bind=weights)
    right = np.load(written).argmax(axis=1) == labels[held]
    each = seconds / STEPS * 1e3
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {STEPS} steps, {seconds:.2f} s ({each:.1f} ms each)")
    print(f"held-out images: {right.sum()} of {len(right)} right, accuracy {right.mean():.2%}; logits in {written}")


if __name__ == "__main__":
    main()
