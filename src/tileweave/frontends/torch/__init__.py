"""PyTorch modules as tensor programs, through ``torch.export``."""

from tileweave.frontends.torch.reader import from_torch

__all__ = ["from_torch"]
