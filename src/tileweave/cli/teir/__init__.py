"""The command ``tileweave teir``."""
