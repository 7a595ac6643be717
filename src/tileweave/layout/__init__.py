"""Layouts: exact maps from logical indices to named physical axes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tileweave.layout.convert import as_array, byte_strides, from_array, to_strides
from tileweave.layout.core.checks import BOUND, Witness
from tileweave.layout.core.combine import Blocks, common_refinement, direct_sum, direct_sum_of, group, tile, tile_of
from tileweave.layout.core.composition import compose
from tileweave.layout.core.coord import DEFAULT_AXIS, Coord
from tileweave.layout.core.exact import Replicas, canonical_key, is_contiguous, normalize, recover, same_map
from tileweave.layout.core.inverse.complement import complement
from tileweave.layout.core.inverse.divide import divide, product
from tileweave.layout.core.inverse.inverses import left_inverse, right_inverse
from tileweave.layout.core.layout import Iter, Layout, strided, substitute
from tileweave.layout.core.rows import carries, from_carries
from tileweave.layout.core.search import collision, holders, image, is_compact, is_injective
from tileweave.layout.core.slices import Piece, Pieces, slice_layout, slice_pieces

if TYPE_CHECKING:
    from tileweave.layout.text.reader import read
    from tileweave.layout.text.short import parse, to_text

_TEXT = {"read": "reader", "parse": "short", "to_text": "short"}
"""What reads and writes every notation loads all of them: plans do without."""


def __getattr__(name: str) -> Any:
    if name in _TEXT:
        return getattr(import_module(f"tileweave.layout.text.{_TEXT[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "BOUND",
    "DEFAULT_AXIS",
    "Blocks",
    "Coord",
    "Iter",
    "Layout",
    "Piece",
    "Pieces",
    "Replicas",
    "Witness",
    "as_array",
    "byte_strides",
    "canonical_key",
    "carries",
    "collision",
    "common_refinement",
    "complement",
    "compose",
    "direct_sum",
    "direct_sum_of",
    "divide",
    "from_array",
    "from_carries",
    "group",
    "holders",
    "image",
    "is_compact",
    "is_contiguous",
    "is_injective",
    "left_inverse",
    "normalize",
    "parse",
    "product",
    "read",
    "recover",
    "right_inverse",
    "same_map",
    "slice_layout",
    "slice_pieces",
    "strided",
    "substitute",
    "tile",
    "tile_of",
    "to_strides",
    "to_text",
]
