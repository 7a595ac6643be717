"""What the compiler says and makes over a fixed corpus: a refactor prints no difference here.

    python tests/replay.py                   compare with tests/golden/replay.txt; exit 1 where a line differs
    python tests/replay.py --update          accept what is made now
    python tests/replay.py --write DIR       every text whole, to compare two checkouts with `diff -r`

A line is a family, a case and the digest of its text. The families: layout results, emitted TEIR programs with their
classification, generated LLVM for two fixed processors, and plans with their explanations.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import operator
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import tileweave as tw
from tileweave import graph, layout, teir
from tileweave.backends.cpu import compile
from tileweave.backends.cpu.target.target import Target, usable
from tileweave.errors import BackendError, TileweaveError
from tileweave.layout import cute

GOLDEN = Path(__file__).parent / "golden" / "replay.txt"
CACHES = {"l1_bytes": 32 * 1024, "l2_bytes": 1024 * 1024, "l3_bytes": 16 * 1024 * 1024}
TARGETS = {
    "v3": Target("x86-64-v3", "", vector_bytes=32, registers=16, **CACHES),
    "v4": Target("x86-64-v4", "", vector_bytes=64, registers=32, **CACHES),
}
EINSUMS = """
ij,jk->ik i=7 j=5 k=3
ij,jk->ik i=512 j=512 k=512
ij,kj->ik i=130 j=70 k=200
ji,jk->ki i=96 j=31 k=77
bij,bjk->bik b=6 i=33 j=17 k=40
ij,j->i i=1000 j=300
j,jk->k j=300 k=1000
i,j->ij i=40 j=50
ij->ji i=200 j=300
abcd->dcba a=12 b=10 c=9 d=16
abc->cab a=64 b=48 c=80
ij->i i=300 j=4000
trus,pqtu->pqrs t=12 r=10 u=9 s=16 p=8 q=7
adb,cd->cba a=96 b=84 c=24 d=64
aebd,ce->dcba a=24 b=20 c=24 d=16 e=48
ea,ebcd->abcd a=24 b=20 c=16 d=12 e=48
dfgb,geac->abcdef a=8 b=6 c=7 d=8 e=5 f=6 g=24
""".strip().splitlines()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="accept what is made now")
    parser.add_argument("--write", metavar="DIR", type=Path, help="write every text whole into a folder")
    options = parser.parse_args()
    lines = []
    for family, case, text in cases():
        lines.append(f"{family}\t{case}\t{hashlib.sha256(text.encode()).hexdigest()[:12]}")
        if options.write:
            safe = "".join(c if c.isalnum() else "_" for c in f"{family} {case}")
            options.write.mkdir(parents=True, exist_ok=True)
            (options.write / f"{len(lines):04}_{safe[:80]}.txt").write_text(text, "utf-8")
    if options.update:
        GOLDEN.write_text("\n".join(lines) + "\n", "utf-8")
        return 0
    before = dict(line.rsplit("\t", 1) for line in GOLDEN.read_text("utf-8").splitlines())
    now = dict(line.rsplit("\t", 1) for line in lines)
    skipped = [] if can_run("v4") else [key for key in before if key.startswith("llvm v4")]
    changed = [key for key in before | now if before.get(key) != now.get(key) and key not in skipped]
    for key in changed:
        state = "gone" if key not in now else "new" if key not in before else "differs"
        print(f"{state}: {key.replace(chr(9), ': ')}")
    print(f"{len(now)} texts, {len(changed)} differ, {len(skipped)} not made on this processor")
    return 1 if changed else 0


def cases() -> Iterator[tuple[str, str, str]]:
    """Every case: family, name, text."""
    for family, made in (("layout", layouts), ("teir", programs), ("llvm", code), ("plan", plans)):
        for name, text in made():
            yield (family, name, text) if family != "llvm" else (f"llvm {name[:2]}", name[3:], text)


def can_run(name: str) -> bool:
    """Whether this processor can run code for a target."""
    try:
        usable(TARGETS[name])
    except BackendError:
        return False
    return True


def attempt(call: Callable[[], object]) -> str:
    """The result as plain data, or the class of the refusal."""
    try:
        value = call()
    except TileweaveError as error:
        return type(error).__name__
    if isinstance(value, cute.CuteLayout):
        return f"{value.shape}:{value.stride}"
    if isinstance(value, layout.Layout):
        rows = [[(it.extent, str(it.stride)) for it in iters] for iters in (value.shard, value.replica)]
        return f"{rows} {value.offset}"
    return repr(value.tolist() if isinstance(value, np.ndarray) else value)


def layouts() -> Iterator[tuple[str, str]]:
    """Operations on layouts drawn from a fixed generator, in both notations."""
    draw = np.random.default_rng(2026)

    def flat(rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        shape = tuple(int(n) for n in draw.choice([1, 2, 3, 4, 6, 8], rank))
        compact = list(itertools.accumulate((1, *shape[:-1]), lambda a, b: a * b))
        draw.shuffle(compact)
        factor = draw.choice([1, 1, 1, 2, 3], rank)
        return shape, tuple(int(s * f) for s, f in zip(compact, factor, strict=True))

    for number in range(300):
        (s1, d1), (s2, d2) = flat(int(draw.integers(1, 5))), flat(int(draw.integers(1, 4)))
        a, b = cute.CuteLayout(s1, d1), cute.CuteLayout(s2, d2)
        x, y = layout.strided(s1, d1), layout.strided(s2, d2)
        begin = tuple(extent // 3 for extent in s1)
        calls: dict[str, Callable[[], object]] = {
            "coalesce": lambda a=a: cute.coalesce(a),
            "composition": lambda a=a, b=b: cute.composition(a, b),
            "complement": lambda a=a: cute.complement(a, 4 * cute.cosize(a)),
            "logical_divide": lambda a=a, b=b: cute.logical_divide(a, b),
            "logical_product": lambda a=a, b=b: cute.logical_product(a, b),
            "left_inverse": lambda a=a: cute.left_inverse(a),
            "right_inverse": lambda a=a: cute.right_inverse(a),
            "normalize": lambda x=x: layout.normalize(x),
            "compose": lambda x=x, y=y: layout.compose(x, y),
            "image": lambda x=x: layout.image(x),
            "injective": lambda x=x: layout.is_injective(x),
            "slice": lambda x=x, s=s1, b=begin: layout.slice_layout(x, s, b, tuple(map(operator.sub, s, b))),
        }
        yield f"{number:03}", "\n".join(f"{name} {attempt(call)}" for name, call in calls.items())


def einsums() -> Iterator[tuple[str, teir.Program]]:
    """The programs of the einsums, their operands row-major."""
    for line in EINSUMS:
        equation, *sizes = line.split()
        extents = {word[0]: int(word[2:]) for word in sizes}
        inputs, output = equation.split("->")
        terms = [*inputs.split(","), output]
        for dtype in ("FP32", "FP64"):
            shapes = [tuple(extents[letter] for letter in term) for term in terms]
            *sources, out = (teir.Operand(layout.strided(shape, row_major(shape)), dtype) for shape in shapes)
            if len(sources) == 2:
                program = teir.emit_contraction(equation, sources, out)
            elif len(output) < len(inputs):
                program = teir.emit_reduction("sum", *sources, out, equation)
            else:
                program = teir.emit_copy(*sources, out, equation)
            yield f"{equation} {' '.join(sizes)} {dtype}", program


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements, last dimension fastest."""
    return tuple(int(np.prod(shape[k + 1 :])) for k in range(len(shape)))


def programs() -> Iterator[tuple[str, str]]:
    """Emitted programs with their classification."""
    for name, program in einsums():
        kernels = [str(teir.explain(primitive, program)) for primitive in program.primitives]
        yield name, "\n".join((str(program), *kernels))


def code() -> Iterator[tuple[str, str]]:
    """The LLVM text of the emitted programs, for two processors and one and two threads."""
    for target in [name for name in TARGETS if can_run(name)]:
        for name, program in einsums():
            for threads in (1, 2):
                kernel = compile(program, target=TARGETS[target], threads=threads, cache=False)
                yield f"{target} {name} threads={threads}", f"{kernel.explain()}\n{kernel.source}"


def plans() -> Iterator[tuple[str, str]]:
    """Plans of small programs on one, four and six machines."""
    for name, sink in graphs():
        for count, memory in ((1, "1GiB"), (4, "64MiB"), (6, "2MiB")):
            used = tw.machines(count, memory=memory, **RATES)
            made = attempt(lambda s=sink, used=used: Explained(tw.plan(s, machines=used)))
            yield f"{name} {count} x {memory}", made


RATES = {"cores": 1, "flops_per_second": 5e10, "bytes_per_second": 3e10}
"""Of the machines of plans, so that these are the same on every host."""


class Explained:
    """A plan whose repr is its explanation."""

    def __init__(self, plan: tw.Plan) -> None:
        self.text = str(plan.explain())

    def __repr__(self) -> str:
        return self.text


def graphs() -> Iterator[tuple[str, graph.Tensor]]:
    """Small programs: a product, a network, attention, a stencil, a reduction, a softmax."""

    def array(*shape: int) -> graph.Tensor:
        return tw.source(np.ones(shape, np.float32))

    x, w1, b1, w2 = array(1000, 256), array(256, 512), array(512), array(512, 64)
    yield "matmul", x @ w1
    yield "mlp", tw.linear(tw.relu(tw.linear(x, w1, b1)), w2, array(64))
    q, k, v = array(4, 128, 32), array(4, 128, 32), array(4, 128, 32)
    yield "attention", graph.attention(q, k, v)
    yield "softmax", tw.softmax(x, axis=-1)
    yield "norm", graph.layer_norm(x, array(256), array(256))
    yield "sum", tw.sum(x, axis=0)
    yield "chain", tw.exp(x * 2.0 - 1.0) / (1.0 + tw.absolute(x))
    yield "stencil", (x[:-2] + x[1:-1] + x[2:]) / 3.0


if __name__ == "__main__":
    sys.exit(main())
