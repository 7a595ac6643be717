"""How a plan is shown: as a table, as plain data, as a picture; registered with the value that is shown."""

from tileweave.planner.plan import VIEWS
from tileweave.planner.show.document import diff, load, save
from tileweave.planner.show.explain import explain, to_json
from tileweave.planner.show.page import to_html
from tileweave.planner.show.picture import to_svg

VIEWS.update({"explain": explain, "json": to_json, "svg": to_svg, "html": to_html, "save": save, "diff": diff})

__all__ = ["diff", "explain", "load", "save", "to_html", "to_json", "to_svg"]
