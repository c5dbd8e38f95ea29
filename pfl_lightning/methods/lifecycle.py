from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.optim import Optimizer

from pfl_lightning import processes
from pfl_lightning.client import Engine, Examples, LossFunction
from pfl_lightning.data import FederatedDataModule, Round, federated
from pfl_lightning.errors import PflError, one_line
from pfl_lightning.federation.checkpoints import (
    check_method,
    check_optimizer_state,
    check_shape,
    check_tensors,
    refusal,
)
from pfl_lightning.federation.chunks import Chunks
from pfl_lightning.federation.client_states import ClientStates
from pfl_lightning.federation.hyperparameters import plain_values
from pfl_lightning.federation.pretrained import read_weights
from pfl_lightning.federation.progress import Progress
from pfl_lightning.federation.sparsity import Sparsity
from pfl_lightning.federation.traffic import Traffic
from pfl_lightning.methods.server_optimizer import ServerOptimizer, try_optimizer
from pfl_lightning.methods.suitable import check_network
from pfl_lightning.metrics import ClientAccuracy, ClientLoss
from pfl_lightning.models import InputKind, Network, Part
from pfl_lightning.recipes import Recorded
from pfl_lightning.seeding import Key
from pfl_lightning.server import Aggregator, restored, stored
from pfl_lightning.system import Clock, Ledger
from pfl_lightning.tree import Params, Tree


class Lifecycle(Recorded, pl.LightningModule, ABC):
    """The Lightning side of every method: building it for the data, logging, saving and loading.

    Args:
        server_optimizer: Makes the server's optimizer, the only optimizer that Lightning sees.
        aggregator: Adds up uploads for the server.

    Attributes:
        network: The network with the server's tensors.
        clients: The tensors that each client keeps.
        engine: Runs the local work of clients.
        chunks: Splits cohorts into chunks that fit in memory.
        progress: How far the current round or evaluation is.
        clock: Rounds completed, and simulated seconds.
        ledger: Bits communicated.
        built_for: Arguments of ``build``, such as the input shape and the number of classes.
        test_only: Whether some clients never train.
        new_head_epochs: If new clients are tested on new heads: the epochs for which they train them.
        parts: Names of the tensors of each part of the network.
        own_loss: The loss given by the user; None for the standard one.
        pretrained: File with the weights that the network starts with.
        taken: A line that says what was taken from it.
    """

    network: Network
    clients: ClientStates
    engine: Engine
    chunks: Chunks
    built_for: dict[str, Any]
    test_only: bool = False
    new_head_epochs: int = 0
    parts: dict[Part, frozenset[str]]
    own_loss: LossFunction | None
    pretrained: str | None
    taken: str = ""
    lr: float
    sparsity: Sparsity

    def __init__(self, server_optimizer: ServerOptimizer, aggregator: Aggregator) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.make_optimizer, self.aggregator = server_optimizer, aggregator
        self.clock, self.ledger, self.progress = Clock(), Ledger(), Progress()
        self.scores, self.others = nn.ModuleDict(), nn.ModuleDict()

    # Implemented by methods

    @property
    @abstractmethod
    def eval_models(self) -> tuple[str, ...]:
        """Names of the models that clients are evaluated with; the first one is used for model selection."""

    @abstractmethod
    def build(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        num_clients: int,
        seed: int = 0,
        pretrained: Mapping[str, Tensor] = MappingProxyType({}),
        test_only: bool = False,
        input_kind: InputKind = "numbers",
        weights: Tree | None = None,
    ) -> None:
        """Make the network and the client states with one row per client, once.

        Args:
            input_shape: Shape of one input.
            num_classes: Number of classes.
            num_clients: Number of clients.
            seed: Seed of the initial network.
            pretrained: The data set's pretrained tensors of the network, by name.
            test_only: Whether some clients never train and so have no samples to fine-tune on.
            input_kind: The kind of the inputs.
            weights: Tensors of the file ``self.pretrained``, if there is one; see ``take_weights``.

        Raises:
            PflError: If the network does not fit the inputs, the method, the backend or the weights.
        """

    @abstractmethod
    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """Tensors of clients that have not taken part yet, given the server's tensors."""

    @property
    def packs(self) -> bool:
        """Whether models have many zeros, and so are packed to be sent and stored."""
        return self.sparsity.prune

    @property
    def evaluated_models(self) -> tuple[str, ...]:
        """The models of this evaluation: ``eval_models``, or those of new clients that train new heads."""
        if not self.new_head_epochs:
            return self.eval_models
        return ("finetuned", *(model for model in self.eval_models if model == "global"))

    @abstractmethod
    def received(self, ids: Tensor) -> Params:
        """Tensors that clients start a round with, ``[cohort, ...]``."""

    @abstractmethod
    def count_traffic(self, batch: Round, up: Traffic, down: Traffic) -> None:
        """Count what is sent in a round beside the uploads to ``aggregator``."""

    @abstractmethod
    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Local work of the clients in a round."""

    # Building for a data set

    def setup(self, stage: str) -> None:
        """Build the network for the data set, and one metric per split and evaluated model."""
        data = federated(self.trainer)
        self.build_for(data)
        self.new_head_epochs = data.new_head_epochs if data.new_clients else 0
        self.scores.clear()
        self.others.clear()
        for split in data.eval_splits:
            for model in self.evaluated_models:
                kind = ClientLoss if data.regression or split == "train" else ClientAccuracy
                self.scores[f"{split}/{model}"] = kind(data.eval_clients)

    def build_for(self, data: FederatedDataModule, resumes: bool = False) -> None:
        """Build the method for a data set, unless it is built, and check that the two are compatible.

        Args:
            data: The data set, after its ``setup``.
            resumes: Whether the weights will come from a checkpoint, so that no file of others need be there.

        Raises:
            PflError: If the network cannot take the inputs, or has no body for new clients, or the method evaluates
                personal models but some clients never train, or the pretrained weights cannot be read or do not fit.
        """
        if not hasattr(self, "clients"):  # do not build twice: pretrained vectors may take seconds to read
            shape = (data.input_shape, data.num_classes, data.num_clients)
            weights = None if resumes or self.pretrained is None else read_weights(self.pretrained)
            test_only = data.training_clients < data.eval_clients
            self.build(*shape, data.seed, data.pretrained(), test_only, data.input_kind, weights)
        try_optimizer(self.make_optimizer, self.network.parameters())
        if self.test_only and self.eval_models != ("global",):
            raise PflError(
                f"data.{data.held_out.clients_option} is not possible with {type(self).__name__}, which evaluates "
                f"clients with personal models ({', '.join(self.eval_models)}); allowed: 0, or a method evaluated "
                "with its global model alone, such as FedAvg"
            )
        check_network(self.network, data, has_body=bool(self.parts["body"]))

    # The server's optimizer

    def configure_optimizers(self) -> Optimizer:
        """Make the server's optimizer."""
        return self.make_optimizer(self.network.parameters())

    @property
    def optimizer(self) -> LightningOptimizer:
        """The server's optimizer."""
        return cast(LightningOptimizer, self.optimizers())

    def on_train_start(self) -> None:
        """Apply this run's learning rate: restoring a checkpoint has overwritten it with the old one."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.optimizer.defaults["lr"]

    # Simulated time and logs

    def skip_round(self, batch: Round) -> None:
        """Pass a round whose uploads are all dropped: it takes time and messages, and leaves the model as it was."""
        batch = batch.drop(torch.ones(len(batch.examples), dtype=torch.bool))
        self.optimizer.zero_grad()
        self.optimizer.step()  # counts the round; no parameter has a gradient
        self.record(batch, 0)
        self.advance_clock(batch)
        self.log_round(batch, None)

    def record(self, batch: Round, uploaded: int) -> None:
        """Enter the messages of a round, and the bytes uploaded for its sums, in the ledger."""
        up, down = (Traffic(self.engine.trainable, self.packs) for _ in range(2))
        if processes.rank() == 0:  # it has the rows of the first client
            self.count_traffic(batch, up, down)
        sent, received, paper = processes.from_first((up.bits, down.bits, up.paper + down.paper))
        self.ledger.record(8 * uploaded + sent, received, paper / len(batch.participants))

    def advance_clock(self, batch: Round) -> None:
        """Advance the simulated clock by a round; by default it lasts as long as its slowest participant."""
        self.clock.advance(batch.awaited[1], batch.communication_time)

    def log_clock(self) -> None:
        """Log simulated seconds; the step of all logs is the number of rounds completed."""
        self.log("step", float(self.clock.rounds))
        self.log_dict(self.clock.scalars(), prog_bar=True)

    def log_budget(self) -> None:
        """Log the privacy budget that the rounds have taken so far, if the sums have one."""
        data = federated(self.trainer)
        clients = data.training_clients
        self.log_dict(self.aggregator.spent(self.clock.rounds, data.participation.pool_size or clients, clients))

    def log_round(self, batch: Round, loss: Tensor | None) -> None:
        """Log a round's simulated time and cohort size, its loss if it has one, and what was summed and sent so far."""
        self.log_clock()
        self.log_dict({**self.aggregator.scalars(), **self.ledger.scalars()})
        if loss is not None:
            self.log("train/loss", loss, prog_bar=True)
        self.log("system/cohort", float(len(batch.examples)), prog_bar=True)
        if federated(self.trainer).participation.can_drop:
            self.log("system/dropped", float(len(batch.dropped)))

    # Checkpoints

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the clock, the ledger, the counts of the sums, and what builds the method again; pack sparse models."""
        checkpoint["clock"], checkpoint["ledger"] = asdict(self.clock), asdict(self.ledger)
        checkpoint["aggregator"] = (self.aggregator.calls, self.aggregator.bytes)
        checkpoint["sparsity"] = plain_values(asdict(self.sparsity))
        checkpoint["engine"] = {"choices": self.engine.choices, "limit": self.chunks.limit}
        checkpoint["method"] = f"{type(self).__module__}.{type(self).__qualname__}"
        checkpoint["shape"] = self.built_for
        checkpoint["hyper_parameters"] = plain_values(checkpoint.get("hyper_parameters", {}))
        self.clients.save(checkpoint)
        if self.packs:
            checkpoint["state_dict"] = stored(checkpoint["state_dict"])

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore clock, ledger and counts; build the method, unless it is built; unpack, and take its float type.

        Raises:
            PflError: If the checkpoint lacks or distorts an entry, or is of another method, network or data set.
        """
        check_method(checkpoint)
        self.clock = Clock(**checkpoint["clock"])
        self.ledger = Ledger(**checkpoint.get("ledger", {}))  # older checkpoints have none, and no counts
        self.aggregator.calls, self.aggregator.bytes = checkpoint.get("aggregator", (0, 0))
        if hasattr(self, "clients"):
            check_shape(checkpoint, self.built_for)
        else:
            self._build_again(checkpoint)
        self.chunks.limit = checkpoint["engine"]["limit"]
        self._unpack(checkpoint)

    def _build_again(self, checkpoint: dict[str, Any]) -> None:
        try:
            self.build(**checkpoint["shape"])
        except (RuntimeError, ValueError, TypeError) as error:
            raise refusal(checkpoint, f"shape: the network cannot be built for it ({one_line(error)})") from error

    def _unpack(self, checkpoint: dict[str, Any]) -> None:
        """Replace the packed tensors by whole ones, and check that they are those of this method."""
        try:
            checkpoint["state_dict"] = restored(checkpoint["state_dict"])
        except (RuntimeError, IndexError, KeyError) as error:
            raise refusal(checkpoint, f"state_dict: a tensor cannot be unpacked ({one_line(error)})") from error
        floats = [tensor.dtype for tensor in checkpoint["state_dict"].values() if tensor.is_floating_point()]
        for part in (self.network, self.clients, self.own_loss):
            if floats and isinstance(part, nn.Module):
                part.to(floats[0])
        check_tensors(checkpoint, {**self.state_dict(), **self.clients.forms(checkpoint)})
        self.clients.load(checkpoint)
        check_optimizer_state(checkpoint, list(self.network.parameters()))
