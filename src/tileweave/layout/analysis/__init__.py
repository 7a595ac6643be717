"""What a layout costs: vector width, bank conflicts, conversions; pictures are in `svg`."""

from tileweave.layout.analysis.collectives import Collective
from tileweave.layout.analysis.conflicts import Remedy, remove_conflicts, search_padding, search_swizzle
from tileweave.layout.analysis.memory import (
    Banks,
    Coalescing,
    Collision,
    VectorWidth,
    bank_conflicts,
    coalescing,
    offsets_of,
    vector_width,
)
from tileweave.layout.analysis.movement import Conversion, conversion
from tileweave.layout.analysis.places import LEVELS

__all__ = [
    "LEVELS",
    "Banks",
    "Coalescing",
    "Collective",
    "Collision",
    "Conversion",
    "Remedy",
    "VectorWidth",
    "bank_conflicts",
    "coalescing",
    "conversion",
    "offsets_of",
    "remove_conflicts",
    "search_padding",
    "search_swizzle",
    "vector_width",
]
