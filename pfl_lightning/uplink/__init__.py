"""What happens to an upload between a client and the server: a list of steps, each a pure function of rows."""

from pfl_lightning.uplink.attacks import ALIE, IPM, Attack, Collusion, Gaussian, MinMax, Scaled, SignFlip
from pfl_lightning.uplink.steps import (
    ERROR,
    Clip,
    ErrorFeedback,
    Quantize,
    Senders,
    Sign,
    Step,
    TopK,
    one_by_one,
    pass_on,
    rebase_stale_uploads,
)

__all__ = [
    "ALIE",
    "ERROR",
    "IPM",
    "Attack",
    "Clip",
    "Collusion",
    "ErrorFeedback",
    "Gaussian",
    "MinMax",
    "Quantize",
    "Scaled",
    "Senders",
    "Sign",
    "SignFlip",
    "Step",
    "TopK",
    "one_by_one",
    "pass_on",
    "rebase_stale_uploads",
]
