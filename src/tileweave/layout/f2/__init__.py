"""Linear maps over F2, with names and without, and swizzles."""

from tileweave.layout.f2.linear import LinearMap, from_layout, places
from tileweave.layout.f2.maps import F2Map

__all__ = ["F2Map", "LinearMap", "from_layout", "places"]
