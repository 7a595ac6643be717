"""Numbers as people read them: bytes, counts, seconds."""

from __future__ import annotations


def size_text(size_bytes: float) -> str:
    """Bytes: at most four digits and a binary unit.

    Example:
        >>> size_text(1536)
        '1.5 KiB'
    """
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"


def count_text(count: float) -> str:
    """A count in powers of a thousand, three digits.

    Example:
        >>> count_text(2_500_000)
        '2.5 M'
    """
    for unit in ("", " k", " M", " G", " T"):
        if abs(count) < 1000:
            return f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.4g} P"


def seconds_text(seconds: float) -> str:
    """A duration, three digits.

    Example:
        >>> seconds_text(0.0042)
        '4.2 ms'
    """
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return "0 s" if seconds == 0 else f"{seconds * 1e9:.3g} ns"
