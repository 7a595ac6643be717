"""Rewrites: rules as values, local expansion with its choices, global search to a fixed point, traces that replay.

A rule sends one tensor to tensors of the same type and value. Nothing else in the graph changes, and what no longer
is observed is unreachable. No rewrite crosses a sequence point: an operation that one holds, or that comes after
one, stays.

Source: Tapestry, "Graph Rewrite Rules".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, Literal, cast

from tileweave.errors import GraphError
from tileweave.graph.ir.interned import built_for
from tileweave.graph.ir.nodes import Graph, Node, Operation, SequencePoint, Tensor, children
from tileweave.graph.passes.shard import moved


@dataclass(frozen=True, slots=True)
class RewriteContext:
    """What a rule may ask about the graph around a tensor.

    Args:
        uses: tensor -> how many nodes read it.
        pinned: operations that sequence points hold, or that come after one.
        below: node -> the pinned operations that it stands on, a bit each; filled as it is asked for.
        bits: numbers that no pinned operation has in `below`.
    """

    uses: Mapping[Tensor, int]
    pinned: AbstractSet[Operation] = frozenset()
    below: dict[Node, int] = field(default_factory=dict, repr=False, compare=False)
    bits: Iterator[int] = field(default_factory=count, repr=False, compare=False)

    @classmethod
    def of(cls, graph: Graph) -> RewriteContext:
        """The context of a graph's tensors."""
        nodes = graph.nodes()
        return cls(_uses(nodes), _pinned(nodes))

    def alone(self, tensor: Tensor) -> bool:
        """Whether at most one node reads a tensor and its producer may be rewritten."""
        return self.uses.get(tensor, 1) <= 1 and tensor.producer not in self.pinned

    def keeps(self, tensor: Tensor, replacement: Tensor) -> bool:
        """Whether every pinned operation that a tensor stands on is still under its replacement."""
        return not self.pinned or not self._held(tensor) & ~self._held(replacement)

    def _held(self, tensor: Tensor) -> int:
        below = self.below
        stack: list[tuple[Node, Iterator[Node]]] = [(tensor, iter(children(tensor)))] if tensor not in below else []
        while stack:
            node, rest = stack[-1]
            child = next((c for c in rest if c not in below), None)
            if child is not None:
                stack.append((child, iter(children(child))))
                continue
            stack.pop()
            held = 1 << next(self.bits) if node in self.pinned else 0
            for child in children(node):
                held |= below[child]
            below[node] = held
        return below[tensor]


def _uses(nodes: Sequence[Node]) -> dict[Tensor, int]:
    uses: dict[Tensor, int] = {}
    for node in nodes:
        for child in children(node):
            if isinstance(child, Tensor):
                uses[child] = uses.get(child, 0) + 1
    return uses


def _pinned(nodes: Sequence[Node]) -> frozenset[Operation]:
    held = [op for node in nodes if isinstance(node, SequencePoint) for op in node.before]
    after = [node for node in nodes if isinstance(node, Operation) and node.after]
    return frozenset(op for op in (*held, *after) if isinstance(op, Operation))


Rewriting = Callable[[Tensor, RewriteContext], Tensor | Iterable[Tensor] | None]


@dataclass(frozen=True, slots=True)
class RewriteRule:
    """A rewrite of one tensor.

    Args:
        name: unique among the rules of a call.
        law: one sentence that says why the value stays the same.
        function: (tensor, context) -> its replacement, several to choose from, or None where the rule does not apply.
            The answer depends on what the tensor is made from and on the context, on nothing else.
        kind: ``semantic`` writes a definition out, ``optimization`` makes something cheaper.
        exact: whether floats keep every bit; otherwise only the order of rounding changes.
    """

    name: str
    law: str
    function: Rewriting
    kind: Literal["semantic", "optimization"] = "optimization"
    exact: bool = True


@dataclass(frozen=True, slots=True)
class RewriteStep:
    """One application: in which pass, at which node of the pass's graph, which rule, which of its choices."""

    number: int
    position: int
    rule: str
    choice: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"pass {self.number}, node {self.position}: {self.rule}[{self.choice}]  {self.before} => {self.after}"


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A rewritten graph, how it came about, and whether nothing was left to do within the bound."""

    graph: Graph
    trace: tuple[RewriteStep, ...]
    complete: bool

    def __str__(self) -> str:
        return "\n".join(map(str, self.trace))


# ---------------------------------------------------------------------------------------------------------------------
# local expansion


Option = tuple[RewriteRule, int, Tensor]
"""A rule, the number of its choice, and what replaces a tensor."""


def choices(tensor: Tensor, rules: Sequence[RewriteRule], context: RewriteContext | None = None) -> list[Option]:
    """Every replacement that some rule has for a tensor, in the order of the rules; ambiguous ones are all kept.

    Raises:
        GraphError: a rule answered a tensor of another type.
    """
    return list(_options(tensor, rules, context if context is not None else RewriteContext({})))


def _options(tensor: Tensor, rules: Sequence[RewriteRule], context: RewriteContext) -> Iterator[Option]:
    """What `choices` lists, each made when it is asked for."""
    if tensor.producer in context.pinned:
        return
    for rule in rules:
        answer = rule.function(tensor, context)
        options: Iterable[Tensor] = [answer] if isinstance(answer, Tensor) else answer or ()
        for k, option in enumerate(options):
            if option.type != tensor.type:
                raise GraphError(
                    f"rule {rule.name}",
                    f"answered {option.type} for {tensor.type}",
                    inputs={"tensor": tensor},
                    legal="a tensor of the same shape and element type",
                )
            if option is not tensor and context.keeps(tensor, option):
                yield rule, k, option


class _Asked(Mapping[Tensor, int]):
    """Numbers of uses, and those that somebody asked for."""

    def __init__(self, uses: Mapping[Tensor, int]) -> None:
        self._uses, self.known = uses, dict[Tensor, "int | None"]()

    def __getitem__(self, tensor: Tensor) -> int:
        found = self.known[tensor] = self._uses.get(tensor)
        if found is None:
            raise KeyError(tensor)
        return found

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._uses)

    def __len__(self) -> int:
        return len(self._uses)


class _Lazy(Sequence[Option]):
    """Replacements to choose from: a rule that nobody asks about, since one before it was taken, answers nothing."""

    def __init__(self, rest: Iterator[Option]) -> None:
        self._rest, self._known = rest, list[Option]()

    def _reach(self, count: int | None) -> list[Option]:
        """The first so many, or all."""
        self._known += islice(self._rest, None if count is None else max(0, count - len(self._known)))
        return self._known

    def __getitem__(self, k: Any) -> Any:
        return self._reach(k + 1 if isinstance(k, int) and k >= 0 else None)[k]

    def __len__(self) -> int:
        return len(self._reach(None))

    def __bool__(self) -> bool:
        return bool(self._reach(1))


# ---------------------------------------------------------------------------------------------------------------------
# global search

Decide = Callable[[int, Tensor, RewriteContext], Iterator[Option]]
Choose = Callable[[Sequence[Option]], int]

_AT_ONE_NODE = 16


Watch = Callable[[Mapping[Node, Node], AbstractSet[Node]], None]


def rewrite(
    graph: Graph,
    rules: Sequence[RewriteRule],
    *,
    passes: int = 32,
    choose: Choose | None = None,
    watch: Watch | None = None,
) -> Rewritten:
    """The rules applied from the sources to the sinks, pass after pass, until none applies or the passes are used up.

    Args:
        graph: any graph.
        rules: in order of precedence.
        passes: the most passes; 1 is one sweep.
        choose: among the replacements of a tensor, the number of the one to take; -1 for none. The first when left out.
            Rules are asked as it reads on, and it is not asked again about a tensor that it left where no rule
            would answer otherwise than before.
        watch: called after every pass with what each node became, and the tensors to which rules applied.

    Returns:
        The graph and its trace. The same graph, rules and choices give the same result.
    """
    names = [rule.name for rule in rules]
    if len(set(names)) != len(names):
        raise GraphError("rewrite(graph, rules)", "two rules have one name", inputs={"rules": ", ".join(names)})

    left: dict[Tensor, dict[Tensor, int | None]] = {}  # that nothing replaced -> the numbers of uses that were asked

    def decide(position: int, tensor: Tensor, context: RewriteContext) -> Iterator[Option]:
        before, plain = left.get(tensor), not context.pinned
        if plain and before is not None and all(context.uses.get(x) == count for x, count in before.items()):
            return
        for _ in range(_AT_ONE_NODE):
            asked = _Asked(context.uses)
            known = RewriteContext(asked, context.pinned, context.below, context.bits) if plain else context
            found = _Lazy(_options(tensor, rules, known))
            number = 0 if choose is None or not found else choose(found)
            if not found or number < 0:
                left[tensor] = asked.known
                return
            yield found[number]
            tensor = found[number][2]

    trace: list[RewriteStep] = []
    for number in range(passes):
        before = graph
        graph, steps, new = _sweep(graph, decide, number)
        trace += steps
        if watch is not None:
            nodes = before.nodes()
            watch(new, {nodes[step.position] for step in steps})
        if not steps:
            return Rewritten(graph, tuple(trace), True)
    return Rewritten(graph, tuple(trace), False)


def replay(graph: Graph, trace: Sequence[RewriteStep], rules: Sequence[RewriteRule]) -> Graph:
    """The graph that a trace led to, from the graph that it began with.

    Raises:
        GraphError: a step does not apply: another graph, or other rules.
    """
    table = {rule.name: rule for rule in rules}
    for number in sorted({step.number for step in trace}):
        todo = {position: [s for s in trace if s.number == number and s.position == position]
                for position in {s.position for s in trace if s.number == number}}  # fmt: skip

        def decide(
            position: int, tensor: Tensor, context: RewriteContext, todo: dict[int, list[RewriteStep]] = todo
        ) -> Iterator[Option]:
            for step in todo.pop(position, ()):
                rule = table.get(step.rule)
                found = choices(tensor, [rule], context) if rule is not None else []
                pick = next((f for f in found if f[1] == step.choice), None)
                if pick is None:
                    raise GraphError("replay(graph, trace, rules)", f"a step does not apply: {step}")
                yield pick
                tensor = pick[2]

        graph, _, _ = _sweep(graph, decide, number)
        if todo:
            raise GraphError("replay(graph, trace, rules)", f"there is no node {min(todo)} in pass {number}")
    return graph


def _sweep(graph: Graph, decide: Decide, number: int) -> tuple[Graph, list[RewriteStep], dict[Node, Node]]:
    """One pass: every node is rebuilt on its rewritten inputs, then rewritten itself; and what each became."""
    nodes = graph.nodes()
    old_uses, pinned = _uses(nodes), _pinned(nodes)
    new: dict[Node, Node] = {}
    uses: dict[Tensor, int] = {}
    kept: set[Operation] = set()
    steps = []
    context = RewriteContext(uses, kept)
    for position, node in enumerate(nodes):
        with built_for(node.producer if isinstance(node, Tensor) else node):
            new[node] = moved(node, new)
            if isinstance(node, Operation) and node in pinned:
                kept.add(cast("Operation", new[node]))
            if not isinstance(node, Tensor):
                continue
            tensor = cast("Tensor", new[node])
            for rule, choice, replacement in decide(position, tensor, context):
                steps.append(RewriteStep(number, position, rule.name, choice, repr(tensor), repr(replacement)))
                tensor = replacement
        new[node] = tensor
        uses[tensor] = uses.get(tensor, 0) + old_uses.get(node, 0)
    return cast("Graph", new[graph]), steps, new
