"""``python -m pfl_lightning``."""

from pfl_lightning.cli import main

main()
