"""How long `import tileweave` takes, beside `import numpy` in the same run; medians over fresh processes."""

import argparse
import json
import statistics
import subprocess
import sys

RUNS = 9


def seconds(statement: str) -> list[float]:
    program = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    command = [sys.executable, "-c", program]
    return [float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(RUNS)]


def main() -> None:
    peer = statistics.median(seconds("import numpy"))
    for statement in (
        "import tileweave",
        "import tileweave.space",
        "import tileweave as tw; tw.source, tw.plan, tw.run, tw.relu",
    ):
        times = seconds(statement)
        row = {
            "bench": "startup",
            "case": statement,
            "median_seconds": statistics.median(times),
            "spread_seconds": max(times) - min(times),
            "peer": "import numpy",
            "peer_seconds": peer,
            "ratio": statistics.median(times) / peer,
        }
        print(json.dumps(row))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
