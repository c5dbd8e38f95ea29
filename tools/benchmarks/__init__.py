"""What ``tools/benchmark.py`` measures, and how it shows it."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tests"))  # its plain loops are the oracles of the methods' tests
