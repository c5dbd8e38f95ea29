"""What a server that averages leaves to choose: a base for each option, and one with all of them."""

from typing import Any, Literal

from torch.optim import SGD, Optimizer

from pfl_lightning.data import FederatedDataModule
from pfl_lightning.federation.accounting import Accounting
from pfl_lightning.federation.checks import ServerOptimizer, try_optimizer
from pfl_lightning.methods.method import Method
from pfl_lightning.server import Aggregator, Weighting
from pfl_lightning.uplink import Step


class Weighted(Method):
    """The rule holds with any weights of the clients' uploads.

    Args:
        weighting: Weights of the uploads: by training ``samples``, or ``uniform``.
        kwargs: Options of the other bases.
    """

    def __init__(self, *, weighting: Weighting = "samples", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.weighting = weighting


class Aggregated(Method):
    """The server needs no more than the sums of what clients upload.

    Args:
        aggregator: Adds up the uploads and training losses for the server, which learns sums alone. Default: in the
            clear (``Aggregator``); ``SecureAggregator`` masks each upload, ``DPAggregator`` adds noise.
        kwargs: Options of the other bases.
    """

    def __init__(self, *, aggregator: Aggregator | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.aggregator = aggregator or self.aggregator
        self.accounting = Accounting(self.aggregator)


class Uplinked(Method):
    """A client uploads one model.

    Args:
        uplink: Steps that a client's model takes on its way to the server, in this order, after pruning: ``Clip``,
            ``Quantize``, or an attack such as ``SignFlip``. Default: none.
        kwargs: Options of the other bases.
    """

    def __init__(self, *, uplink: list[Step] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.uplink = uplink or []


class ServerOptimized(Method):
    """The server's optimizer moves one shared model.

    Args:
        server_optimizer: Applies the mean change of the clients to the shared model; SGD with rate 1 sets the mean.
        kwargs: Options of the other bases.
    """

    def __init__(
        self, *, server_optimizer: ServerOptimizer = lambda params: SGD(params, lr=1.0), **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.make_optimizer = server_optimizer

    def build_for(self, data: FederatedDataModule, resumes: bool = False) -> None:
        """Build the method for a data set, and try the server's optimizer; see ``Method.build_for``."""
        super().build_for(data, resumes)
        try_optimizer(self.make_optimizer, self.network.parameters())

    def configure_optimizers(self) -> Optimizer:
        """Make the server's optimizer."""
        return self.make_optimizer(self.network.parameters())


class SharedStatistics(Method):
    """The BatchNorm layers that clients share may have statistics of each client.

    Args:
        batch_norm: Running statistics of shared BatchNorm layers: the server's ``average``, or ``local`` to a client.
        kwargs: Options of the other bases.
    """

    def __init__(self, *, batch_norm: Literal["average", "local"] = "average", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batch_norm = batch_norm


class Averaging(Weighted, Aggregated, Uplinked, ServerOptimized, SharedStatistics):
    """The server steps to a mean of the clients' models, with all of these options."""


class UniformAveraging(Aggregated, Uplinked, ServerOptimized, SharedStatistics):
    """The server steps to the plain mean of the clients' models: the rule does not hold with other weights."""

    weighting = "uniform"
