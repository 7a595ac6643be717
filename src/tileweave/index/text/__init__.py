"""Expressions as text: our own notation, and programs in several languages."""
