"""Personalized federated learning research on PyTorch Lightning."""

from importlib.metadata import version

__version__ = version("pfl_lightning")
