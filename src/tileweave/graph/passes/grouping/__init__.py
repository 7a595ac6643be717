"""Rules that make one operation of several: rows of reductions, convolutions with the chain behind them."""
