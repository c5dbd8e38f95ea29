from math import isfinite

import lightning.pytorch as pl
import torch
from torch import Tensor

from pfl_lightning.callbacks.figures import show_figure
from pfl_lightning.data import federated
from pfl_lightning.errors import PflError
from pfl_lightning.methods import Method, method_of
from pfl_lightning.metrics import pair_correlation, pairs
from pfl_lightning.models import Part
from pfl_lightning.report import cosine_figure
from pfl_lightning.server import cosines

PARTS: dict[str, Part] = {"heads": "head", "bodies": "body"}


class CosineMaps(pl.Callback):
    """Shows whether clients with similar data have similar heads, for any method whose clients keep heads.

    At each evaluation it logs ``cosines/heads_data_correlation``, Pearson's correlation over all pairs of clients
    between the cosine of their class counts in training and that of their heads, and, where clients keep bodies, the
    smallest cosine between two of these as ``cosines/bodies_smallest``. A correlation is missing while all heads are
    equal. After training, the figure ``cosines/maps`` has those of the last evaluation.

    Paper: Xiong et al., DePRL, AAAI 2024, arXiv:2312.10815, Figure 3.

    Differs: its code maps a cosine c to (c + 1) / 2; we show c. That moves neither a correlation nor an order.
    """

    def __init__(self) -> None:
        self.maps: dict[str, Tensor] = {}

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check that there is what to compare.

        Raises:
            PflError: If the method's clients keep no heads.
        """
        if not personal_parameters(method_of(pl_module), "head"):
            name = type(pl_module).__name__
            raise PflError(f"CosineMaps needs clients that keep heads, as in FedRep; those of {name} keep none")

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compute the maps, and log what they say."""
        method = method_of(pl_module)
        counts = class_counts(trainer, method)
        self.maps = {"data": cosines(counts @ counts.T)}
        for name, part in PARTS.items():
            if names := personal_parameters(method, part):
                self.maps[name] = cosines(method.clients.inner_products(names)).cpu()
        correlation = float(pair_correlation(self.maps["data"], self.maps["heads"]))
        if isfinite(correlation):
            method.log("cosines/heads_data_correlation", correlation)
        if "bodies" in self.maps and len(body_cosines := pairs(self.maps["bodies"])):
            method.log("cosines/bodies_smallest", body_cosines.min())

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw the maps of the last evaluation."""
        method = method_of(pl_module)
        maps = {name: entries.numpy() for name, entries in self.maps.items()}
        figure = cosine_figure(maps, class_counts(trainer, method).numpy())
        show_figure(trainer, "cosines/maps", figure, method.accounting.clock.rounds)


def personal_parameters(method: Method, part: Part) -> list[str]:
    """Names of a part's parameters that clients keep, those of their second model if they have one."""
    names = method.parts[part] & method.engine.trainable
    for prefix in ("personal.", ""):
        rows = {prefix + name for name in names}
        if rows and rows <= set(method.clients.names):
            return sorted(rows)
    return []


def class_counts(trainer: pl.Trainer, method: Method) -> Tensor:
    """Training samples of each class at each client that can train, ``[clients, classes]``."""
    return torch.from_numpy(federated(trainer).class_counts()["train"][: method.num_clients])
