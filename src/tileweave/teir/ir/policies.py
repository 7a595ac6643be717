"""How iterations may be run: an open set of policies, each with what it promises about order.

``sequential`` and ``parallel`` are the document's. A compiler registers further ones for the ``tileweave`` profile,
such as a mapping to blocks or lanes; what a backend does not know it runs as the promise allows.

Source: TEIR, table 10.2.1; that the set is open is our own.
"""

from __future__ import annotations

from dataclasses import dataclass

from tileweave.errors import VerifyError


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """What a policy promises.

    Args:
        name: as iterations name it.
        any_order: whether iterations may run in any order and at once, so that they must not race; otherwise they run
            by increasing index.
        meaning: in words, for people.
    """

    name: str
    any_order: bool
    meaning: str


DOCUMENT_POLICIES = ("sequential", "parallel")
_POLICIES = {
    "sequential": PolicySpec("sequential", False, "by increasing index"),
    "parallel": PolicySpec("parallel", True, "in any order, or at once"),
}


def register_policy(spec: PolicySpec) -> PolicySpec:
    """From now on, iterations of the ``tileweave`` profile may name this policy.

    Raises:
        VerifyError: a policy of this name is registered already.

    Example:
        >>> any_order("parallel"), any_order("sequential"), any_order("unheard of")
        (True, False, False)
    """
    if spec.name in _POLICIES:
        facts = {"rule": "registry", "path": ""}
        raise VerifyError("register_policy(spec)", f"a policy {spec.name!r} is registered already", facts=facts)
    _POLICIES[spec.name] = spec
    return spec


def policies() -> tuple[str, ...]:
    """The registered names, in order of registration."""
    return tuple(_POLICIES)


def any_order(policy: str) -> bool:
    """Whether iterations may run in any order; not for a policy that nobody has registered."""
    return policy in _POLICIES and _POLICIES[policy].any_order
