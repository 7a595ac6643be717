"""The command ``tileweave``."""
