from pfl_lightning import models
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.errors import PflError
from pfl_lightning.models import Network


def check_network(network: Network, data: FederatedDataModule, has_body: bool) -> None:
    """Check that a network suits a data set.

    Args:
        network: The network.
        data: The data set.
        has_body: Whether the network has layers beside the head.

    Raises:
        PflError: If it cannot take the inputs, or has no body for new clients.
    """
    if network.takes != data.input_kind:
        ours = [kind for kind in vars(models).values() if isinstance(kind, type) and issubclass(kind, Network)]
        fitting = sorted(kind.__name__ for kind in ours if kind.takes == data.input_kind and kind is not Network)
        raise PflError(
            f"model.network: {network.kind} takes {network.takes}, {type(data).__name__} has {data.input_kind}; "
            f"allowed: {', '.join(fitting)}, or your own with takes = '{data.input_kind}'"
        )
    if data.new_clients and data.new_head_epochs and not has_body:
        raise PflError(
            f"data.new_head_epochs: {data.new_head_epochs} is not possible with {network.kind}, which has only one "
            "layer and so no body; allowed: 0"
        )
