"""Einsums of arrays, computed at once: no plan, one kernel per part, kept by what the arrays look like."""

from __future__ import annotations

from tileweave.lower.eager.einsums import Contraction, contract

__all__ = ["Contraction", "contract"]
