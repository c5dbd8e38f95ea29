"""The ``pfl`` command."""

from pfl_lightning.cli.main import main

__all__ = ["main"]
