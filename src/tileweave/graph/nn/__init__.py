"""Functions of neural networks, composed of operators."""

from tileweave.graph.nn import activations, attention, norms, parts  # noqa: F401  (they fill the table of functions)
