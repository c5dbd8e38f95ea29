"""What happens to an upload between a client and the server: a list of steps, each a pure function of rows."""

from pfl_lightning.uplink.attacks import Attack, SignFlip
from pfl_lightning.uplink.steps import Clip, Quantize, Senders, Step, pass_on, rebase_stale_uploads

__all__ = [
    "Attack",
    "Clip",
    "Quantize",
    "Senders",
    "SignFlip",
    "Step",
    "pass_on",
    "rebase_stale_uploads",
]
