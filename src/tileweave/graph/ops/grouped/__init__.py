"""Operators that fusion makes of several: rows of reductions, convolutions with the chain behind them."""
