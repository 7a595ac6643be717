"""A program that is made again from a recorded one is the program that the emitters would make."""

import random
from collections import Counter

import numpy as np
import pytest

import tileweave as tw
from tileweave.graph import Operation, Tensor, nn
from tileweave.lower import emitted
from tileweave.lower.emitted import OperandView, program
from tileweave.lower.programs import lowering, program_kind, result_of

KINDS = ("chain", "select", "softmax", "norm", "linear", "product", "batches", "sum", "extreme", "mean")
MORE = ("conv", "transpose", "reshape", "running", "place", "attention")


def drawn(rng: random.Random, kind: str) -> Tensor:
    """A tensor of this kind, of any small extents."""
    dtype = rng.choice(["float32", "float32", "float64", "float16"])

    def source(*shape: int) -> Tensor:
        return tw.source(np.empty(shape, dtype))

    def some(rank: int) -> list[int]:
        return [rng.choice([1, rng.randint(1, 40), rng.randint(1, 40)]) for _ in range(rank)]

    def spread(shape: list[int]) -> list[int]:
        return [1 if rng.random() < 0.3 else n for n in shape]

    s = some(3)
    axis = rng.randrange(3)
    if kind == "chain":
        return tw.relu(source(*s) * source(*spread(s)) + source(*spread(s)))
    if kind == "select":
        return tw.where(source(*s) > 0, source(*s), source(*spread(s)))
    if kind == "softmax":
        return tw.softmax(source(*s), axis=axis)
    if kind == "norm":
        return nn.layer_norm(source(*s), source(s[-1]), source(s[-1]))
    if kind == "linear":
        return tw.relu(tw.linear(source(s[0], s[1]), source(s[1], s[2]), source(s[2])))
    if kind == "product":
        return tw.exp(source(s[0], s[1]) @ source(s[1], s[2]) * 2)
    if kind == "batches":
        return source(3, s[0], s[1]) @ source(3, s[1], s[2])
    if kind == "sum":
        return tw.sum(source(*s), axis=rng.choice([0, 1, 2, (0, 1), (1, 2), (0, 2)]))
    if kind == "extreme":
        return tw.max(source(*s), axis=axis)
    if kind == "mean":
        return tw.mean(source(*s), axis=axis)
    if kind == "conv":
        image, size = source(s[0], 3, 3 + s[1], 3 + s[2]), rng.choice([1, 3])
        return tw.relu(nn.conv(image, source(5, 3, size, size), stride=rng.choice([1, 2])))
    if kind == "transpose":
        return tw.transpose(source(*s), (2, 0, 1)) + 0
    if kind == "reshape":
        return tw.reshape(tw.transpose(source(*s), (1, 0, 2)), (s[0] * s[1], s[2])) * 2
    if kind == "running":
        return tw.cumsum(source(*s), axis=axis)
    if kind == "place":
        return tw.argmax(source(*s), axis=axis)
    return nn.attention(*(source(1, 2, 8 + s[0], 16) for _ in range(3)))


def lies_anyhow(rng: random.Random, tensor: Tensor) -> OperandView:
    """A tensor's array inside a larger one, or an element of it again and again."""
    whole = np.empty([n + rng.choice([0, 0, 1, 2]) for n in tensor.shape], tensor.dtype)
    part = whole[tuple(slice(n) for n in tensor.shape)]
    if rng.random() < 0.2:
        part = np.broadcast_to(part[tuple(slice(1) for _ in tensor.shape)], tensor.shape)
    return OperandView.of(part)


def numbers(made: tw.teir.Program) -> list[object]:
    """All numbers of a program."""
    found: list[object] = [spec.size_bytes for spec in made.tensors]
    for axis in made.axes:
        found += [axis.extent, *axis.strides, *axis.offsets]
    return found + [value for primitive in made.primitives for _, value in primitive.metadata]


@pytest.mark.parametrize("kind", [*KINDS, *MORE])
def test_a_program_made_again_is_the_one_that_is_emitted(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Counter[bool]()
    again = emitted.RecordedProgram.again

    def counted(self: emitted.RecordedProgram, given: list[float]) -> object:
        made = again(self, given)
        served[made is not None] += 1
        return made

    monkeypatch.setattr(emitted.RecordedProgram, "again", counted)
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(12):
        plan = tw.plan(drawn(rng, kind), machines=tw.machines(1))
        for step in plan.steps:
            node = step.node
            if not isinstance(node, Operation) or not lowering(node, "block"):
                continue
            for _ in range(3):
                views = {name: lies_anyhow(rng, x) for name, x in node.inputs}
                out = OperandView.dense(result_of(node)[1])
                asked = program_kind(node, "block", list(views))
                made, fresh = emitted.emitted(asked, views, out), program(asked, views, out)
                assert made == fresh
                assert list(map(type, numbers(made))) == list(map(type, numbers(fresh)))
    assert served[True]


def test_constants_of_zero_keep_their_sign_across_extents() -> None:
    def masked(n: int, zero: float) -> Tensor:
        x = tw.source(np.random.default_rng(n).standard_normal((64, n), np.float32))
        power = tw.exp(x - tw.max(x, axis=1, keepdims=True))
        return tw.where(tw.greater(x, 0.5), power / tw.sum(power, axis=1, keepdims=True), zero)

    for zero, n in ((0.0, 128), (-0.0, 132), (0.0, 132), (-0.0, 128), (0.0, 136), (-0.0, 140), (0.0, 140)):
        result = tw.run(masked(n, zero))
        np.testing.assert_array_equal(np.signbit(result), np.signbit(np.asarray(masked(n, zero))))
