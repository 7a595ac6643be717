"""Inference over a data set larger than the memory: images in one zarr, classes and scores in two others.

A small network learns scikit-learn's handwritten digits. Then 600,000 images (the held-out ones, each moved by up to
one pixel, with noise) lie in `out/images.zarr`, and one plan reads, classifies and writes them, a wave of shards at a
time: its budget is a fraction of the images. `out/inference.svg` is the plan, `out/inference.json` a trace for
chrome://tracing or Perfetto.
"""

import time
from pathlib import Path

import numpy as np
import zarr
from sklearn.datasets import load_digits

import tileweave as tw
from tileweave.runtime.trace import RunReport, Trace

IMAGES, BATCH = 600_000, 20_000
STEPS, RATE = 60, 0.5
MACHINES, MEMORY = 2, "12MiB"
OUT = Path("out")

Weights = dict[str, np.ndarray]


def main() -> None:
    pixels, labels = load_digits(return_X_y=True)
    held = np.arange(len(pixels)) % 3 == 0
    weights = train(pixels[~held] / 16, labels[~held])
    OUT.mkdir(exist_ok=True)
    truth = write_images(pixels[held].astype(np.uint8).reshape(-1, 8, 8), labels[held])

    x = tw.source(OUT / "images.zarr")
    scores = network(x.astype("float32") / 16, {name: tw.source(value, name=name) for name, value in weights.items()})
    classes = tw.argmax(scores, axis=1)
    sinks = [
        tw.sink(scores, OUT / "scores.zarr", overwrite=True),
        tw.sink(classes, OUT / "classes.zarr", overwrite=True),
    ]
    plan = tw.plan(sinks, machines=tw.machines(MACHINES, memory=MEMORY))
    print(plan.explain(), "\n")
    (OUT / "inference.svg").write_text(plan._repr_svg_(), encoding="utf-8")

    trace, report = Trace(OUT / "inference.json"), RunReport(plan)
    start = time.perf_counter()
    tw.run(plan, listeners=[trace.of(plan), report], progress=True)
    seconds = time.perf_counter() - start
    print(report, "\n")

    size = IMAGES * 64 * 4
    print(
        f"{size / 2**20:.0f} MiB as FP32, planned peak {max(plan.peak_bytes) / 2**20:.1f} MiB of {MEMORY} per machine"
    )
    print(f"{IMAGES} images in {seconds:.1f} s, {IMAGES / seconds:,.0f} a second")
    found = zarr.open_array(OUT / "classes.zarr", mode="r")[:]
    print(f"{(found == truth).sum()} of {IMAGES} right, accuracy {(found == truth).mean():.2%}")
    some = np.random.default_rng(2).integers(IMAGES, size=500)
    images = zarr.open_array(OUT / "images.zarr", mode="r").oindex[np.sort(some)].astype(np.float64) / 16
    error = np.abs(
        zarr.open_array(OUT / "scores.zarr", mode="r").oindex[np.sort(some)] - by_numpy(images, weights)
    ).max()
    print(f"largest difference of the scores from NumPy: {error:.1e}")
    if error > 1e-4:
        raise SystemExit("the scores differ from NumPy")


def network(x: tw.Tensor, p: dict[str, tw.Tensor]) -> tw.Tensor:
    return tw.linear(tw.relu(tw.linear(x, p["w1"], p["b1"])), p["w2"], p["b2"])


def train(images: np.ndarray, labels: np.ndarray) -> Weights:
    """A few steps of gradient descent on all images at once; each batch moves them by up to one pixel."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": (rng.standard_normal((64, 128)) * np.sqrt(2 / 64)).astype(np.float32),
        "b1": np.zeros(128, np.float32),
        "w2": (rng.standard_normal((128, 10)) * np.sqrt(2 / 128)).astype(np.float32),
        "b2": np.zeros(10, np.float32),
    }
    params = {name: tw.source(value, name=name) for name, value in weights.items()}
    given = tw.source(name="images", shape=images.shape, dtype=np.float32)
    onehot = np.eye(10, dtype=np.float32)[labels]
    loss = -tw.mean(tw.sum(tw.log_softmax(network(given, params)) * onehot, axis=1))
    step = tw.plan([loss, *tw.grad(loss, list(params.values()))])
    for _ in range(STEPS):
        batch = moved(images.astype(np.float32).reshape(-1, 8, 8), rng).reshape(-1, 64)
        now, *gradients = tw.run(step, bind=weights | {"images": batch})
        weights = {name: value - RATE * g for (name, value), g in zip(weights.items(), gradients, strict=True)}
    print(f"trained in {STEPS} steps: loss {float(now):.3f}\n")
    return weights


def moved(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each image by -1, 0 or 1 pixel along the rows."""
    by = rng.integers(-1, 2, len(images))
    wide = np.pad(images, ((0, 0), (0, 0), (1, 1)))
    return np.stack([wide[:, :, 1 - d : 9 - d] for d in (-1, 0, 1)])[by + 1, np.arange(len(images))]


def write_images(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """`IMAGES` variations of some images as one zarr of bytes, batch by batch; gives their labels."""
    rng = np.random.default_rng(1)
    file = zarr.create_array(OUT / "images.zarr", shape=(IMAGES, 64), chunks=(BATCH, 64), dtype="u1", overwrite=True)
    truth = rng.integers(len(images), size=IMAGES)
    for first in range(0, IMAGES, BATCH):
        batch = moved(images[truth[first : first + BATCH]], rng)
        noise = rng.integers(0, 3, batch.shape, dtype=np.uint8)
        file[first : first + BATCH] = np.minimum(batch + noise, 16).reshape(-1, 64)
    return labels[truth]


def by_numpy(x: np.ndarray, p: Weights) -> np.ndarray:
    """The same in double precision."""
    p = {name: value.astype(np.float64) for name, value in p.items()}
    return np.maximum(x @ p["w1"] + p["b1"], 0) @ p["w2"] + p["b2"]


if __name__ == "__main__":
    main()
