"""Attention over a real text: every word looks back at the words before it.

The text is this repository's own licence. A word's vector comes from counts: how often it stands near each frequent
word, compressed by a singular value decomposition. One head of causal attention runs over all of the words, whole and
with the keys in parts, so that no machine ever holds all scores.
"""

import re
from collections import Counter
from pathlib import Path

import numpy as np

import tileweave as tw
from tileweave.graph import attention, attention_in_parts

TEXT = Path(__file__).resolve().parent.parent / "LICENSE"
FREQUENT, WIDTH, NEAR, PARTS = 200, 32, 4, 4
WORDS = ("license", "contribution", "derivative")


def vectors(tokens: np.ndarray, size: int) -> np.ndarray:
    """A vector per word of the vocabulary: counts of its neighbours, by logarithm of what chance would give."""
    counts = np.zeros((size, FREQUENT))
    for distance in range(1, NEAR + 1):
        for a, b in ((tokens[:-distance], tokens[distance:]), (tokens[distance:], tokens[:-distance])):
            near = b < FREQUENT
            np.add.at(counts, (a[near], b[near]), 1.0)
    chance = np.outer(counts.sum(1), counts.sum(0)) / counts.sum()
    weight = np.log1p(counts / np.maximum(chance, 1e-9))
    left, strength, _ = np.linalg.svd(weight, full_matrices=False)
    table = left[:, :WIDTH] * np.sqrt(strength[:WIDTH])
    return (table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-9)).astype(np.float32)


def main() -> None:
    words = re.findall(r"[a-z]+", TEXT.read_text(encoding="utf-8").lower())
    counts = Counter(words)
    vocabulary = [word for word, _ in counts.most_common()]
    number = {word: k for k, word in enumerate(vocabulary)}
    tokens = np.array([number[word] for word in words])
    print(f"{len(words)} words, {len(vocabulary)} different; most frequent: ", end="")
    print(", ".join(f"{word} {count}" for word, count in counts.most_common(5)))

    x = vectors(tokens, len(vocabulary))[tokens]
    place = np.arange(len(tokens))[:, None] / 50.0 * np.float32(2.0) ** -np.arange(4)
    keys = np.concatenate([6 * x, np.sin(place), np.cos(place)], axis=1).astype(np.float32)
    q, v = tw.source(keys, name="queries and keys"), tw.source(x, name="values")

    # whole: all scores are one tensor; in parts: the scores of a quarter of the keys at a time
    whole = tw.plan(attention(q, q, v, causal=True))
    machines = tw.machines(4, memory="8MiB")
    parts = tw.plan(attention_in_parts(q, q, v, PARTS, causal=True), machines=machines)
    for name, plan in (("whole", whole), ("keys in parts", parts)):
        text = f"{len(plan.machines)} machine(s), {plan.tasks} tasks, {plan.flops / 1e9:.2f} Gflop"
        print(f"{name}: {text}, at most {max(plan.peak_bytes) / 2**20:.1f} MiB on a machine")
    mixed = tw.run(whole)
    difference = float(np.abs(mixed - tw.run(parts)).max())

    weights = by_numpy(keys.astype(np.float64))
    for word in WORDS:
        last = len(words) - 1 - words[::-1].index(word)
        seen: Counter[str] = Counter()
        for k in range(last):
            seen[words[k]] += float(weights[last, k])
        looks = ", ".join(f"{w} {share:.0%}" for w, share in seen.most_common(4))
        print(f"the last {word!r} (word {last}) looks back at: {looks}")

    error = float(np.abs(mixed - weights @ x).max())
    print(f"whole and in parts differ by {difference:.1e}; largest difference from NumPy: {error:.1e}")
    if max(error, difference) > 1e-4:
        raise SystemExit("the results differ")


def by_numpy(keys: np.ndarray) -> np.ndarray:
    """The weights of causal attention in double precision."""
    scores = keys @ keys.T / np.sqrt(keys.shape[1])
    scores[np.triu_indices(len(keys), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


if __name__ == "__main__":
    main()
