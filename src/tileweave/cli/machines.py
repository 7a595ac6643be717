"""``tileweave machines``: measure machines, and show what a description says."""

from __future__ import annotations

import argparse
from typing import Any

from tileweave.cli.files import check_new, write_whole
from tileweave.planner import machines
from tileweave.planner.machine import to_toml

_EPILOG = """examples:
  tileweave machines probe
  tileweave machines probe -o here.toml
  tileweave machines probe --address 10.0.0.1:6379 --folder /shared -o cluster.toml
  tileweave machines show cluster.toml
"""


def add_machines_commands(commands: Any) -> None:
    """The verbs of ``tileweave machines``."""
    parser = commands.add_parser(
        "machines",
        allow_abbrev=False,
        help="measure machines, and show what a description of them says",
        description="Machines as the planner knows them: rates, sizes, links.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    inner = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    probe = inner.add_parser(
        "probe",
        allow_abbrev=False,
        help="measure this machine, or each node of a running Ray cluster",
        description="Measure rates per element type, bandwidths, latency and the cost of a task; print them as TOML.",
    )
    probe.add_argument("--address", help="of a running Ray cluster; this machine alone without it")
    probe.add_argument("--folder", help="where sources and sinks will lie (default: the temporary folder)")
    probe.add_argument("--seconds", type=float, default=4.0, help="about how long each machine is measured")
    probe.add_argument("-o", "--output", metavar="FILE.toml", help="where to write; without it, printed")
    probe.add_argument("--overwrite", action="store_true", default=None, help="replace the output if it exists")
    probe.set_defaults(action=_probe)
    show = inner.add_parser("show", allow_abbrev=False, help="print what a description of machines says")
    show.add_argument("file", metavar="FILE.toml")
    show.set_defaults(action=_show)


def _probe(options: argparse.Namespace) -> int:
    from tileweave.runtime.probe import probe

    if options.output:
        check_new("-o", options.output, ".toml", bool(options.overwrite))
    found = probe(options.address, folder=options.folder, seconds=options.seconds)
    text = to_toml(found)
    if options.output:
        write_whole(options.output, text)
        print(f"{options.output}: {found}")
    else:
        print(text, end="")
    return 0


def _show(options: argparse.Namespace) -> int:
    found = machines(options.file)
    print(found)
    print(to_toml(found), end="")
    return 0
