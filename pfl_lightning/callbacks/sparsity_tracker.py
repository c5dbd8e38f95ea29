from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch

from pfl_lightning.callbacks.board import tensorboards
from pfl_lightning.callbacks.evaluation import is_extra, is_new
from pfl_lightning.callbacks.figures import show_figure
from pfl_lightning.errors import PflError
from pfl_lightning.methods import Method, method_of
from pfl_lightning.metrics import ClientDensity
from pfl_lightning.report import density_figure
from pfl_lightning.report.run_files import LINK_BITS
from pfl_lightning.tree import Params, Tree, movable, select

THRESHOLDS = (1e-4, 1e-3, 1e-2)  # beside that of the method
SHARED = "global"
ALL = "all"
VALUE = 64  # bits of a number in the formula of FedMac's paper


class SparsityTracker(pl.Callback):
    """Shows how sparse the evaluated models are, at each evaluation while training and for any method.

    Density is the share of parameters whose absolute value is above a threshold; the FedMac paper (Liu et al.,
    arXiv:2107.05330) calls it sparsity. Every evaluated model has it at 0.0001, 0.001, 0.01 and at the method's
    ``sparsity.threshold``; of models that differ between clients, it is the mean over the clients.

    That of a whole model is logged, as ``density/global/all/1e-03``. TensorBoard also has that of each layer,
    as ``density/global/fc1/1e-03``, and after training a heat map of layers by rounds at the method's threshold,
    ``density/global``. Layers are not logged further, since each would be several columns of ``metrics.csv``.

    Beside it stands ``bits/paper``: the bits that all rounds have taken on the link of one client, both ways, by the
    formula of the FedMac paper, which only counts parameters (``dense_bits``, ``sparse_bits``).

    Attributes:
        link_bits: These bits so far.
        history: What the heat maps show, by model and by round of the evaluation: the densities of the layers and of
            the whole model.
    """

    def __init__(self) -> None:
        self.history: dict[str, dict[int, list[float]]] = {}
        self.link_bits = 0.0

    def state_dict(self) -> dict[str, Any]:
        """The history, so that heat maps of a resumed run begin with its first round, and the bits."""
        return {"history": self.history, "link_bits": self.link_bits}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the history and the bits."""
        self.history = state_dict["history"]
        self.link_bits = state_dict["link_bits"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Clear the history in a new run, which may reuse this object; drop an evaluation that was extra.

        Raises:
            PflError: If clients have different networks, of whose layers there is no mean.
        """
        if len(method_of(pl_module).architectures) > 1:
            raise PflError(
                "trainer.callbacks: SparsityTracker is not possible with Architectures; allowed: one network"
            )
        if is_new(trainer):
            self.history = {}
            self.link_bits = 0.0
        if is_extra(trainer):
            for history in self.history.values():
                history.popitem()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *others: Any) -> None:
        """Add the bits of a round."""
        method = method_of(pl_module)
        ledger = method.accounting.ledger
        packed = sparse_bits(ledger.entries, ledger.values)
        self.link_bits += packed if method.packs else dense_bits(ledger.entries)
        method.log(LINK_BITS, self.link_bits)

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Measure the clients' models while they are evaluated; the global one needs no clients."""
        method = method_of(pl_module)
        for model in method.eval_models:
            if model != SHARED:
                method.evaluator.measures[f"{model}/density"] = metric_for(method)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the densities, and remember what the heat maps show."""
        method = method_of(pl_module)
        rounds = method.accounting.clock.rounds
        for model in method.eval_models:
            metric = global_density(method) if model == SHARED else method.evaluator.measures.pop(f"{model}/density")
            densities = metric.compute()
            *layers, total = densities.tolist()
            method.log_dict(tagged(metric, f"density/{model}/{ALL}", total))
            for board in tensorboards(trainer):
                for layer, values in zip(metric.layers, layers, strict=True):
                    board.log_metrics(tagged(metric, f"density/{model}/{layer}", values), rounds)
            column = densities[:, metric.thresholds.index(method.sparsity.threshold)]
            self.history.setdefault(model, {})[rounds] = column.tolist()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw the heat maps."""
        method = method_of(pl_module)
        rows = [*metric_for(method).layers, ALL]
        threshold = method.sparsity.threshold
        for model, history in self.history.items():
            title = f"Density of the {model} model (parameters above {threshold:g}), and its last value"
            figure = density_figure(list(history), rows, np.array(list(history.values())), title)
            show_figure(trainer, f"density/{model}", figure, method.accounting.clock.rounds)


def metric_for(method: Method) -> ClientDensity:
    """An empty metric for models of a method."""
    thresholds = sorted({*THRESHOLDS, method.sparsity.threshold})
    return ClientDensity(trained(method), thresholds).to(method.device)


def global_density(method: Method) -> ClientDensity:
    """The density of the shared model, regardless of the clients."""
    metric = metric_for(method)
    metric.update(torch.zeros(1), metric.measure(Params(trained(method), {})))  # as if of one client
    return metric


def trained(method: Method) -> Tree:
    """The shared model's parameters that train."""
    return select(movable(method.network), method.engine.trainable)


def tagged(metric: ClientDensity, tag: str, densities: list[float]) -> dict[str, float]:
    """The densities at the thresholds of a metric, by tags such as ``density/global/all/1e-03``."""
    names = [np.format_float_scientific(threshold, trim="-", exp_digits=2) for threshold in metric.thresholds]
    return {f"{tag}/{name}": density for name, density in zip(names, densities, strict=True)}


def dense_bits(entries: float) -> float:
    """Bits of a model with this many parameters, by the formula of FedMac's paper.

    Examples:
        >>> dense_bits(79510)  # layers of 784, 100 and 10
        5088640
    """
    return VALUE * entries


def sparse_bits(entries: float, values: float) -> float:
    """Bits of a pruned model of which ``values`` parameters are not zero, by the formula of FedMac's paper.

    A zero takes one bit, and every parameter takes another one that says whether it is zero. So a model without zeros
    takes more bits than a dense one.

    Paper: Liu et al., "Sparse Personalized Federated Learning" (FedMac), IEEE TNNLS 2023, arXiv:2107.05330.

    Examples:
        >>> sparse_bits(79510, 39755)
        2663585
        >>> sparse_bits(79510, 79510)
        5168150
    """
    return VALUE * values + (entries - values) + entries
