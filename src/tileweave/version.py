"""The version of the package, apart from the face so that every floor may read it."""

__all__ = ["__version__"]

__version__ = "0.1.0"
