"""Attention: tiles of scores in the caches, and a softmax that is corrected as further keys pass."""
