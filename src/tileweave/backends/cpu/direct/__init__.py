"""Convolutions without packing: windows are read where they lie, and what follows each sum is computed in registers."""
