"""The version of the package, by itself, so that every layer may read it."""

__all__ = ["__version__"]

__version__ = "0.1.0"
