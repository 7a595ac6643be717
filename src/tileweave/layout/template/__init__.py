"""Templates: a kernel's text with placeholders, and what they mean as layouts, slices and expressions."""

from tileweave.layout.template.binding import Template, template
from tileweave.layout.template.values import TARGETS, Filled, IndexPart, TextTarget

__all__ = ["TARGETS", "Filled", "IndexPart", "Template", "TextTarget", "template"]
