"""Training of stacks of linear layers for many clients at once, with hand-written gradients and updates.

``layer`` updates a weight in every step. ``dual`` computes the weight of the first layer only at the end of the phase:
SGD is a linear recursion (``recursion``), so the weight is a linear combination of the initial weight and of the
inputs, with few coefficients. ``steps`` puts the layers together.
"""

from pfl_lightning.client.linear.steps import LinearGradients, LinearSteps

__all__ = ["LinearGradients", "LinearSteps"]
