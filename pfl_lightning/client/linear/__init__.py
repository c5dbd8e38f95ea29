"""Stacks of linear layers at many clients at once, with products and updates written by hand.

``layer`` moves a weight step by step. ``dual`` makes the weight of the first layer only when the phase ends: SGD is a
linear recursion (``recursion``), so the weight is a combination of the weight before the phase and of the inputs, and
its factors are small. ``steps`` puts the layers together.
"""

from pfl_lightning.client.linear.steps import LinearSteps

__all__ = ["LinearSteps"]
