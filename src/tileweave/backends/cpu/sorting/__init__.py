"""Sorting of whole rows, side by side in the lanes of vectors."""
