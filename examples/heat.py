"""The heat equation on a real photograph: brightness is temperature, the border is kept cold, heat spreads and drains.

Each time step is a stencil of five points. Sixteen steps are one graph; cut over four machines, neighbours exchange
only the lines at their seams. The photograph is scikit-learn's own copy of "flower.jpg"; reading it needs Pillow. The
picture ``out/heat.svg`` is the plan of two steps, on one machine of twice the others' speed: it gets twice the lines.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
from sklearn.datasets import load_sample_image

import tileweave as tw
from tileweave.graph import stencil

STEPS, ROUNDS = 16, 5
FLOW = 0.2
"""Of the difference to each neighbour, per step; beyond 0.25 the explicit method is not stable."""

FIVE_POINTS = np.array([[0, FLOW, 0], [FLOW, 1 - 4 * FLOW, FLOW], [0, FLOW, 0]], np.float32)


def brightness() -> np.ndarray:
    try:
        pixels = load_sample_image("flower.jpg")
    except ImportError:
        raise SystemExit("this example reads a JPEG: python -m pip install pillow") from None
    return (pixels.mean(axis=-1) / 255).astype(np.float32)


def main() -> None:
    image = brightness()
    start = tw.source(shape=image.shape, dtype=image.dtype, name="temperature")
    heat = start
    for _ in range(STEPS):
        heat = stencil(heat, FIVE_POINTS)  # outside lies zero: the border is cold
    plan = tw.plan([heat, tw.sum(heat)], machines=tw.machines(4, memory="16MiB"))

    stencils = [step for step in plan.steps if step.name == "conv"]
    print(f"{len(stencils)} stencils, each cut {stencils[0].cuts} over {plan.machines}")
    print(f"{plan.tasks} tasks, {plan.flops / 1e6:.0f} Mflop; per seam and step {FIVE_POINTS.shape[0] // 2} line moves")
    whole = image.nbytes * (len(stencils) - 1)
    print(f"{plan.bytes_moved / 1024:.0f} KiB cross between machines, of {whole / 1024:.0f} KiB that steps hand on")

    draw(image.shape)
    now = image
    print(f"step   0: heat {now.sum(dtype=np.float64):9.1f}, hottest {now.max():.3f}")
    for number in range(1, ROUNDS + 1):
        now, total = tw.run(plan, bind={"temperature": now})
        print(f"step {number * STEPS:3}: heat {float(total):9.1f}, hottest {now.max():.3f}")

    error = np.abs(now - by_numpy(image.astype(np.float64))).max()
    print(f"largest difference from NumPy after {STEPS * ROUNDS} steps: {error:.1e}")
    if error > 1e-4:
        raise SystemExit("the result differs from NumPy")


def draw(shape: tuple[int, ...]) -> None:
    """The plan of two steps on machines of unlike speed, as a picture."""
    first, *others = tw.machines(3, memory="16MiB").machines
    fast = replace(first, flops_per_second=2 * first.flops_per_second, bytes_per_second=2 * first.bytes_per_second)
    used = tw.planner.Machines((fast, *others), link_bytes_per_second=1e11, link_seconds=1e-6)
    start = tw.source(shape=shape, dtype=np.float32, name="temperature")
    plan = tw.plan(stencil(stencil(start, FIVE_POINTS), FIVE_POINTS), used)
    parts = [np.diff(cuts) for cuts in plan.steps[0].cuts.cuts if len(cuts) > 2]
    print(f"on machines of unlike speed: {', '.join(map(str, parts[0])) + ' lines' if parts else 'one has them all'}")
    Path("out").mkdir(exist_ok=True)
    Path("out/heat.svg").write_text(plan._repr_svg_(), encoding="utf-8")


def by_numpy(x: np.ndarray) -> np.ndarray:
    """The same in double precision."""
    for _ in range(STEPS * ROUNDS):
        wide = np.pad(x, 1)
        around = wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:]
        x = x + FLOW * (around - 4 * x)
    return x


if __name__ == "__main__":
    main()
