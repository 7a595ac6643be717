"""Templates: a kernel's text with placeholders, and what they mean as layouts, slices and expressions."""

from tileweave.layout.template.accessor import Accessor, accessor
from tileweave.layout.template.binding import Template, template
from tileweave.layout.template.values import TARGETS, Filled, IndexPart, TextTarget

__all__ = ["TARGETS", "Accessor", "Filled", "IndexPart", "Template", "TextTarget", "accessor", "template"]
