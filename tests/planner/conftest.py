"""Makes the random graphs, and costs by counting, importable."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "graph")]
