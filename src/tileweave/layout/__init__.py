"""Layouts: exact maps from logical indices to named physical axes."""

from tileweave.layout.composition import compose
from tileweave.layout.exact import (
    BOUND,
    Replicas,
    Witness,
    canonical_key,
    carries,
    from_carries,
    normalize,
    recover,
    same_map,
)
from tileweave.layout.layout import DEFAULT_AXIS, Coord, Iter, Layout, strided
from tileweave.layout.search import collision, holders, image, is_compact, is_contiguous, is_injective

__all__ = [
    "BOUND",
    "DEFAULT_AXIS",
    "Coord",
    "Iter",
    "Layout",
    "Replicas",
    "Witness",
    "canonical_key",
    "carries",
    "collision",
    "compose",
    "from_carries",
    "holders",
    "image",
    "is_compact",
    "is_contiguous",
    "is_injective",
    "normalize",
    "recover",
    "same_map",
    "strided",
]
