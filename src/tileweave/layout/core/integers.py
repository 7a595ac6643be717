"""Whole numbers: prime factors and divisors, quick up to 2**64."""

from __future__ import annotations

from math import gcd

from tileweave.errors import Undecided

__all__ = ["divisors", "factorize"]


def factorize(n: int) -> dict[int, int]:
    """The prime factors of n with their powers.

    Example:
        >>> factorize(360)
        {2: 3, 3: 2, 5: 1}
    """
    out: dict[int, int] = {}
    for p in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):
        while n % p == 0:
            n //= p
            out[p] = out.get(p, 0) + 1
    p = 41
    while p * p <= n and p < 2000:
        while n % p == 0:
            n //= p
            out[p] = out.get(p, 0) + 1
        p += 2
    rest = [n] if n > 1 else []
    while rest:
        m = rest.pop()
        if _is_prime(m):
            out[m] = out.get(m, 0) + 1
        else:
            d = _split(m)
            rest += [d, m // d]
    return dict(sorted(out.items()))


def _is_prime(n: int) -> bool:
    """Miller and Rabin with bases that are exact below 3.3e24."""
    if n < 2:
        return False
    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
    if any(n % p == 0 for p in bases):
        return n in bases
    d, twos = n - 1, 0
    while d % 2 == 0:
        d, twos = d // 2, twos + 1
    for base in bases:
        x = pow(base, d, n)
        if x in (1, n - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


def _split(n: int) -> int:
    """A proper divisor of an odd composite n (Pollard's rho)."""
    for c in range(1, n):
        x = y = 2
        d = 1
        while d == 1:
            x = (x * x + c) % n
            y = (y * y + c) % n
            y = (y * y + c) % n
            d = gcd(abs(x - y), n)
        if d != n:
            return d
    return n


def divisors(n: int, where: str = "divisors(n)") -> list[int]:
    """Every divisor of n, ascending; `Undecided` where there are more than 2**16."""
    primes = factorize(n)
    count = 1
    for k in primes.values():
        count *= k + 1
    if count > 1 << 16:
        raise Undecided(where, f"{n} has {count} divisors, too many to probe", facts={"bound": 1 << 16})
    out = [1]
    for p, k in primes.items():
        out = [d * p**j for j in range(k + 1) for d in out]
    return sorted(out)
