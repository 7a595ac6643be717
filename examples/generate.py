"""Train a tiny language model on this repository's licence, then let it write, with a cache of keys and values.

Training and writing are two plans over the same weights. Both keep state in arrays that are bound and given as ``out``:
the weights with their moments (Adam is part of the graph), and the cache, which takes one place at each step, so that
writing a word costs the same however long the text is. The check at the end writes the text again without a cache. The
picture ``out/generate.svg`` is the plan of one word.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.progress import track

import tileweave as tw
from tileweave import nn

TEXT = Path(__file__).resolve().parent.parent / "LICENSE"
OUT = Path("out")
WIDTH, HEADS, LAYERS, LONGEST = 64, 4, 2, 64
STEPS, BATCH, LENGTH, RATE = 80, 12, 32, 5e-3
SLOW, SLOWER = 0.9, 0.99  # how much of the moments stays at each step

Tensors = dict[str, tw.Tensor]
Arrays = dict[str, np.ndarray]


def weights_of(words: int, rng: np.random.Generator) -> Arrays:
    shapes = {"words": (words, WIDTH)}
    for n in range(LAYERS):
        shapes |= {f"qkv{n}": (WIDTH, 3 * WIDTH), f"mix{n}": (WIDTH, WIDTH)}
        shapes |= {f"up{n}": (WIDTH, 4 * WIDTH), f"down{n}": (4 * WIDTH, WIDTH)}
    return {
        name: (rng.standard_normal(s) / np.sqrt(s[-2] if name != "words" else 16)).astype(np.float32)
        for name, s in shapes.items()
    }


def heads(x: tw.Tensor) -> tw.Tensor:
    """[.., places, width] as [.., heads, places, features]."""
    split = tw.reshape(x, (*x.shape[:-1], HEADS, WIDTH // HEADS))
    return tw.swapaxes(split, -2, -3)


def block(
    x: tw.Tensor, w: Tensors, n: int, cache: Sequence[tw.Tensor] | None, start: tw.Tensor | int
) -> tuple[tw.Tensor, tuple[tw.Tensor, tw.Tensor]]:
    """One layer; with a cache, the keys and values of all words so far, and the cache with this one's."""
    q, k, v = (heads(part) for part in tw.split(nn.rms_norm(x) @ w[f"qkv{n}"], 3, axis=-1))
    places = tw.arange(x.shape[-2]) + start
    q, k = nn.rotary(q, places), nn.rotary(k, places)
    length = None
    if cache is not None:
        k, v = (nn.cache_update(old, new, start) for old, new in zip(cache, (k, v), strict=True))
        length = start + x.shape[-2]
    mixed = nn.attention(q, k, v, causal=True, start=start, length=length)
    x = x + tw.reshape(tw.swapaxes(mixed, -2, -3), x.shape) @ w[f"mix{n}"]
    return x + nn.gelu(nn.rms_norm(x) @ w[f"up{n}"]) @ w[f"down{n}"], (k, v)


def scores(
    tokens: tw.Tensor, w: Tensors, caches: Sequence[Sequence[tw.Tensor]] = (), start: tw.Tensor | int = 0
) -> tuple[tw.Tensor, list[tw.Tensor]]:
    """The scores of the next word at every place, and the caches."""
    x, kept = tw.embedding(tokens, w["words"]), []
    for n in range(LAYERS):
        x, cache = block(x, w, n, caches[n] if caches else None, start)
        kept += cache
    return nn.rms_norm(x) @ tw.transpose(w["words"]), kept


def trained(tokens: np.ndarray, weights: Arrays, rng: np.random.Generator) -> list[float]:
    """The losses; the weights are updated in place."""
    params = {name: tw.source(value, name=name) for name, value in weights.items()}
    batch = tw.source(name="batch", shape=(BATCH, LENGTH + 1), dtype=np.int64)
    rate = tw.source(name="rate", shape=(), dtype=np.float32)
    made = scores(batch[:, :-1], params)[0]
    loss = nn.cross_entropy(tw.reshape(made, (-1, made.shape[-1])), tw.reshape(batch[:, 1:], -1))
    state: Arrays = {}
    results, places = [loss], [None]
    for (name, param), slope in zip(params.items(), tw.grad(loss, list(params.values())), strict=True):
        moments = {f"{kind} {name}": np.zeros_like(weights[name]) for kind in ("mean", "square")}
        state |= moments
        mean, square = (tw.source(value, name=key) for key, value in moments.items())
        mean, square = SLOW * mean + (1 - SLOW) * slope, SLOWER * square + (1 - SLOWER) * slope * slope
        results += [param - rate * mean / (tw.sqrt(square) + 1e-8), mean, square]
        places += [weights[name], *moments.values()]
    plan = tw.plan(results)
    kinds = {step.name for step in plan.steps}
    print(f"training: {len(plan.steps)} steps of {len(kinds)} kinds, {plan.flops / 1e6:.0f} Mflop")
    losses = []
    for t in track(range(1, STEPS + 1), description="training"):
        first = rng.integers(0, len(tokens) - LENGTH - 1, BATCH)[:, None]
        corrected = np.float32(RATE * np.sqrt(1 - SLOWER**t) / (1 - SLOW**t))
        bind = weights | state | {"batch": tokens[first + np.arange(LENGTH + 1)], "rate": corrected}
        losses.append(float(tw.run(plan, bind=bind, out=places)[0]))
    return losses


def written(weights: Arrays, prompt: list[int], count: int) -> tuple[list[int], tw.Plan]:
    """The prompt and the most likely words behind it, one run of one plan each; the caches are updated in place."""
    w = {name: tw.source(value, name=name) for name, value in weights.items()}
    state = {
        f"{kind}{n}": np.zeros((1, HEADS, LONGEST, WIDTH // HEADS), np.float32) for n in range(LAYERS) for kind in "kv"
    }
    holes = {name: tw.source(name=name, shape=array.shape, dtype=array.dtype) for name, array in state.items()}
    caches = [(holes[f"k{n}"], holes[f"v{n}"]) for n in range(LAYERS)]
    word = tw.source(name="word", shape=(1, 1), dtype=np.int64)
    start = tw.source(name="start", shape=(), dtype=np.int64)
    found, kept = scores(word, w, caches, start)
    plan = tw.plan([tw.argmax(found[0, -1]), *kept])
    tokens = list(prompt)
    for place in range(len(prompt) + count - 1):
        bind = {"word": np.array([[tokens[place]]]), "start": np.array(place), **state}
        best, *_ = tw.run(plan, bind=bind, out=[None, *state.values()])
        if place + 1 == len(tokens):
            tokens.append(int(best))
    return tokens, plan


def without_a_cache(weights: Arrays, prompt: list[int], count: int) -> list[int]:
    """The same text, reading everything again for each word: a plan for each length."""
    model = tw.program(
        lambda words: scores(words, {name: tw.source(value) for name, value in weights.items()})[0],
        words=((1, tw.dim("length", 1, LONGEST)), "int64"),
    )
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(model(np.array([tokens]))["out"][0, -1].argmax()))
    return tokens


def main() -> None:
    text = re.findall(r"[a-z]+|[.,;]", TEXT.read_text(encoding="utf-8").lower())
    words = sorted(set(text))
    number = {word: k for k, word in enumerate(words)}
    tokens = np.array([number[word] for word in text])
    rng = np.random.default_rng(0)
    weights = weights_of(len(words), rng)
    print(f"{len(text)} words, {len(words)} different; {sum(map(np.size, weights.values()))} weights")

    losses = trained(tokens, weights, rng)
    print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}")

    prompt = [number[word] for word in ("you", "may")]
    made, plan = written(weights, prompt, 24)
    print(plan.explain().splitlines()[0])
    memory = max(plan.peak_bytes) / 2**10
    print(f"one word: {len(plan.steps)} steps, {plan.flops / 1e3:.0f} kflop, at most {memory:.0f} KiB")
    print("text:", " ".join(words[k] for k in made))
    again = without_a_cache(weights, prompt, 6)
    print(f"the same without a cache: {again == made[: len(again)]}")
    OUT.mkdir(exist_ok=True)
    (OUT / "generate.svg").write_text(plan._repr_svg_(), encoding="utf-8")


if __name__ == "__main__":
    main()
