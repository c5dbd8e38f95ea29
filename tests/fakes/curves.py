"""Curves of run folders."""

from pfl_lightning.report import curves_of, read_run


def curves(*folders, models=()):
    """The curves of some run folders; see ``curves_of``."""
    return curves_of([read_run(folder) for folder in folders], models)
