"""Blur a real photograph: a Gaussian as two convolutions, cut over four small machines whose strips overlap.

The photograph is scikit-learn's own copy of "china.jpg" (427 x 640 pixels, three channels); reading it needs Pillow.
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_sample_image

import tileweave as tw
from tileweave.graph import conv, expand, is_sharding, pad

RADIUS, SIGMA = 6, 2.0
OUT = Path("out")


def photograph() -> np.ndarray:
    """The channels as a batch of grey images in 0..1."""
    try:
        pixels = load_sample_image("china.jpg")
    except ImportError:
        raise SystemExit("this example reads a JPEG: python -m pip install pillow") from None
    return (pixels.transpose(2, 0, 1)[:, None] / 255).astype(np.float32)


def main() -> None:
    image = photograph()
    bell = np.exp(-(np.arange(-RADIUS, RADIUS + 1) ** 2) / (2 * SIGMA**2))
    bell = (bell / bell.sum()).astype(np.float32)

    # the border mirrors the image; a Gaussian of two dimensions is one along the columns, then one along the rows
    wide = pad(tw.source(image, name="image"), [(0, 0), (0, 0), (RADIUS, RADIUS), (RADIUS, RADIUS)], "reflect")
    down = conv(wide, tw.source(bell.reshape(1, 1, -1, 1), name="bell down"))
    blurred = conv(down, tw.source(bell.reshape(1, 1, 1, -1), name="bell across"))

    OUT.mkdir(exist_ok=True)
    plan = tw.plan(tw.sink(blurred, OUT / "blurred.npy", overwrite=True), machines=tw.machines(4, memory="8MiB"))
    print(plan.explain(), "\n")
    result = tw.run(tw.source(tw.run(plan)))  # the file, read back

    # the plan as the explicit graph of its shards, proved from the signatures alone: no value is looked at
    cuts = {step.node: step.cuts for step in plan.steps if step.stage == "block"}
    sharded = expand(plan.graph, cuts)
    print(f"{len(plan.graph.operations)} operations became {len(sharded.operations)} shards;", end=" ")
    print("a correct sharding:", is_sharding(sharded, plan.graph))

    expected = by_numpy(image[:, 0], bell)
    error = np.abs(result[:, 0] - expected).max()
    roughness = [float(np.abs(np.diff(x.astype(np.float64), axis=-1)).mean()) for x in (image, result)]
    print(f"mean step between neighbours {roughness[0]:.4f} -> {roughness[1]:.4f}; written to {OUT / 'blurred.npy'}")
    print(f"largest difference from NumPy: {error:.1e}")
    if error > 1e-5:
        raise SystemExit("the result differs from NumPy")


def by_numpy(images: np.ndarray, bell: np.ndarray) -> np.ndarray:
    """The same in double precision, as sums of moved images."""
    x = np.pad(images.astype(np.float64), [(0, 0), (RADIUS, RADIUS), (RADIUS, RADIUS)], "reflect")
    rows, columns = images.shape[1:]
    down = sum(w * x[:, k : k + rows] for k, w in enumerate(bell.astype(np.float64)))
    return sum(w * down[:, :, k : k + columns] for k, w in enumerate(bell.astype(np.float64)))


if __name__ == "__main__":
    main()
