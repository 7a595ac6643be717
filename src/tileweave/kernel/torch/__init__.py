"""Kernels beside PyTorch: operators that its compiler knows, and layouts of its distributed tensors."""
