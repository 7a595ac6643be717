"""Whatever is passed to the functions of index expressions: an answer or a refusal, never an internal error."""

from __future__ import annotations

import inspect
import random
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from tileweave import index
from tileweave.errors import LayoutError, TileweaveError
from tileweave.index import symbol

N, I = symbol("n", 1), symbol("i", 0, 8)
JUNK = [
    None, "ab", "", 1.5, float("nan"), True, np.int64(4), np.float32(2), 0, -1, 7, 1 << 70, (), (1, 2), [N], {},
    {"n": 3}, b"x", object(), np.arange(3), np.zeros(2), N, I * 3 // N, N < 3, (N < 3) & (I < 2), Fraction(1, 2), 3j,
    int, len, range(2),
]  # fmt: skip
FUNCTIONS = sorted(name for name in index.__all__ if inspect.isfunction(getattr(index, name)))
OPERATORS = ["__add__", "__rsub__", "__mul__", "__floordiv__", "__mod__", "__and__", "__or__", "__xor__", "__lt__",
             "__lshift__", "__rshift__", "__pow__", "__truediv__", "__divmod__"]  # fmt: skip


def call(function, arguments, named=()):
    try:
        function(*arguments, **dict(named))
    except TileweaveError as refusal:
        assert isinstance(refusal.where, str) or "where" in inspect.signature(function).parameters
        return True
    return False


@pytest.mark.parametrize("name", FUNCTIONS)
def test_junk_is_refused_or_answered(name):
    function = getattr(index, name)
    rng = random.Random(name)
    tried = 0
    for count in (1, 2, 3):
        try:
            inspect.signature(function).bind(*range(count))
        except TypeError:
            continue
        every = list(product(JUNK, repeat=count))
        for arguments in every if len(every) < 1000 else rng.sample(every, 200):
            call(function, arguments)
            tried += 1
    assert tried


@pytest.mark.parametrize("name", ["given", "limit", "using"])
@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: type(junk).__name__)
def test_junk_by_name_is_refused_or_answered(name, junk):
    if name == "given":
        call(index.simplify, (I * 3 // N,), {"given": junk})
        call(index.bounds, (I,), {"given": junk})
    refused = call(index.prove, (I * I < N * N,), {name: junk})
    assert refused or name != "given" or isinstance(junk, (tuple, list))


@pytest.mark.parametrize("name", ["names", "ctype", "dialect", "type", "function", "rename"])
def test_printers_refuse_junk_by_name(name):
    for printer in (index.to_c, index.to_python, index.to_mlir, index.c_prelude):
        if name in inspect.signature(printer).parameters:
            arguments = () if printer is index.c_prelude else ([I // 3, N],)
            refused = [call(printer, arguments, {name: junk}) for junk in JUNK]
            assert sum(refused) > len(JUNK) // 2


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_refuse_what_is_no_integer(operator):
    for junk in JUNK:
        if isinstance(junk, (Fraction, range)) or callable(junk) or type(junk) is object:
            continue  # Python's own TypeError: the other object was asked and does not know either
        call(getattr(I, operator), (junk,))
    with pytest.raises(LayoutError):
        getattr(I, operator)("x")
