"""What happens to an upload between a client and the server: a list of steps, each a pure function of rows."""

from pfl_lightning.uplink.attacks import ALIE, IPM, Attack, Collusion, Gaussian, MinMax, Scaled, SignFlip
from pfl_lightning.uplink.steps import (
    MEMORY,
    Clip,
    ErrorFeedback,
    LowRank,
    Momentum,
    Quantize,
    Senders,
    Sent,
    Sign,
    Step,
    TopK,
    one_by_one,
    pass_on,
    rebase_stale_uploads,
)

__all__ = [
    "ALIE",
    "IPM",
    "MEMORY",
    "Attack",
    "Clip",
    "Collusion",
    "ErrorFeedback",
    "Gaussian",
    "LowRank",
    "MinMax",
    "Momentum",
    "Quantize",
    "Scaled",
    "Senders",
    "Sent",
    "Sign",
    "SignFlip",
    "Step",
    "TopK",
    "one_by_one",
    "pass_on",
    "rebase_stale_uploads",
]
