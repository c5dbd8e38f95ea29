from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.optim import Optimizer

from pfl_lightning.client import Engine
from pfl_lightning.data import FederatedDataModule, Judgement, federated
from pfl_lightning.errors import PflError
from pfl_lightning.methods.bank import ClientBank
from pfl_lightning.methods.chunks import Chunks
from pfl_lightning.methods.hyperparameters import plain_values
from pfl_lightning.metrics import ClientAccuracy, ClientLoss, ClientScore
from pfl_lightning.models import Network
from pfl_lightning.system import Clock
from pfl_lightning.tree import Tree


class Lifecycle(pl.LightningModule, ABC):
    """What Lightning asks of every method: to be built for the data, to log, to save itself and to come back.

    Args:
        server_optimizer: Makes the server's optimizer, the only one that Lightning knows.

    Attributes:
        network: The network; its tensors are those of the server.
        clients: What the clients keep.
        engine: Computes what happens at clients.
        chunks: How many clients are in memory at once.
        clock: Rounds completed, and simulated seconds.
        built_for: Shape of an input, number of classes and so on, as ``build`` takes them.
        test_only: Whether some clients never train.
    """

    network: Network
    clients: ClientBank
    engine: Engine
    chunks: Chunks
    built_for: dict[str, Any]
    test_only: bool = False
    lr: float

    def __init__(self, server_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.make_optimizer = server_optimizer
        self.clock = Clock()
        self.scores = nn.ModuleDict()

    # What a method says of itself

    @property
    @abstractmethod
    def judged_models(self) -> tuple[str, ...]:
        """Names of the models by which clients are judged; the first one is for model selection."""

    @abstractmethod
    def build(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        num_clients: int,
        seed: int = 0,
        pretrained: Mapping[str, Tensor] = MappingProxyType({}),
        test_only: bool = False,
    ) -> None:
        """Make the network and one row per client of what they keep, once.

        Args:
            input_shape: Shape of one input.
            num_classes: Number of classes.
            num_clients: Number of clients.
            seed: Seed of the initial network.
            pretrained: Tensors that it starts with, by name.
            test_only: Whether some clients never train, so that they have nothing to refit a part on.

        Raises:
            PflError: If the network does not suit the inputs, the method or the backend.
        """

    @abstractmethod
    def at_first(self, tensors: Tree) -> Tree:
        """What a client keeps before it has taken part, given the server's tensors."""

    # Built for the data

    def setup(self, stage: str) -> None:
        """Build the network for the data set, and one metric per split and judged model."""
        data = federated(self.trainer)
        self.build_for(data)
        for split in data.judged_splits:
            for model in self.judged_models:
                kind = ClientLoss if data.regression or split == "train" else ClientAccuracy
                self.scores[f"{split}/{model}"] = kind(data.judged_clients)

    def build_for(self, data: FederatedDataModule) -> None:
        """Build the method for a data set, unless it is built, and refuse what does not go together.

        Args:
            data: The data set, after its ``setup``.

        Raises:
            PflError: If the network does not take the inputs, or clients that never train would be judged by what they
                do not have.
        """
        if not hasattr(self, "clients"):  # built before, and pretrained vectors may take seconds to read
            shape = (data.input_shape, data.num_classes, data.num_clients)
            self.build(*shape, data.seed, data.pretrained(), data.test_clients > 0)
        if self.test_only and self.judged_models != ("global",):
            raise PflError(
                f"data.test_clients: {data.test_clients} is not possible with {type(self).__name__}, which judges "
                f"clients by what they have of their own ({', '.join(self.judged_models)}); allowed: 0, or a method "
                "with a global model, such as FedAvg"
            )
        if self.network.takes != data.input_kind:
            raise PflError(
                f"model.network: {type(self.network).__name__} takes {self.network.takes}, {type(data).__name__} has "
                f"{data.input_kind}; configs/data names a network that suits"
            )

    def on_test_start(self) -> None:
        """Give new clients what a client has before it takes part."""
        if new_clients := federated(self.trainer).new_clients:
            self.clients = ClientBank(self.at_first(self.network.state_dict()), new_clients)

    # The server's optimizer

    def configure_optimizers(self) -> Optimizer:
        """Make the server's optimizer."""
        return self.make_optimizer(self.network.parameters())

    @property
    def optimizer(self) -> LightningOptimizer:
        """The server's optimizer."""
        return cast(LightningOptimizer, self.optimizers())

    def on_train_start(self) -> None:
        """Apply the learning rate of this run; restoring a checkpoint has put back the old one."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.optimizer.defaults["lr"]

    # Logs

    @property
    def metrics(self) -> dict[str, ClientScore]:
        """The clients' scores of the current evaluation, by ``split/model``."""
        return cast(dict[str, ClientScore], dict(self.scores.items()))

    def log_round(self, loss: Tensor, cohort_size: int) -> None:
        """Log what a round did."""
        self.log_clock()
        self.log("train/loss", loss, prog_bar=True)
        self.log("system/cohort", float(cohort_size), prog_bar=True)

    def log_clock(self) -> None:
        """Log simulated seconds at the number of rounds completed, which is TensorBoard's step."""
        self.log("step", float(self.clock.rounds))
        self.log_dict(self.clock.scalars(), prog_bar=True)

    def on_validation_epoch_start(self) -> None:
        """Stop a run that has diverged, with a PflError, before its state is judged and saved."""
        loss = self.trainer.callback_metrics.get("train/loss")
        if loss is not None and not torch.isfinite(loss):
            raise PflError(f"training diverged by round {self.clock.rounds}; try a smaller model.lr than {self.lr}")

    def on_validation_epoch_end(self) -> None:
        """Log how the scores are spread over the clients, and forget them."""
        self.log_clock()
        for name, metric in self.metrics.items():
            summary = metric.compute().items()
            self.log_dict({f"{name}/{metric.quantity.name}/{key}": value.float() for key, value in summary})
            metric.reset()

    @abstractmethod
    def validation_step(self, batch: Judgement, batch_idx: int) -> None:
        """Judge some clients by each of their models, on each split."""

    def test_step(self, batch: Judgement, batch_idx: int) -> None:
        """The same as in validation."""
        self.validation_step(batch, batch_idx)

    def on_test_epoch_end(self) -> None:
        """The same as in validation."""
        self.on_validation_epoch_end()

    # Checkpoints

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the clock, and what it takes to build the method again."""
        checkpoint["clock"] = asdict(self.clock)
        checkpoint["engine"] = {"choices": self.engine.choices, "limit": self.chunks.limit}
        checkpoint["method"] = f"{type(self).__module__}.{type(self).__qualname__}"
        checkpoint["shape"] = self.built_for
        checkpoint["hyper_parameters"] = plain_values(checkpoint.get("hyper_parameters", {}))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the clock; build the network if no data set has; take the float type, which Lightning sets late."""
        self.clock = Clock(**checkpoint["clock"])
        if not hasattr(self, "clients"):
            self.build(**checkpoint["shape"])
        self.chunks.limit = checkpoint["engine"]["limit"]
        dtypes = [tensor.dtype for tensor in checkpoint["state_dict"].values() if tensor.is_floating_point()]
        nn.ModuleList([self.network, self.clients]).to(dtypes[0])
