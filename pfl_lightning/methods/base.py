from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal, cast

import lightning.pytorch as pl
import torch
from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from pfl_lightning.client import BackendName, Engine, Examples, Phase
from pfl_lightning.data import Judgement, Round
from pfl_lightning.errors import PflError
from pfl_lightning.methods.assembly import assemble
from pfl_lightning.methods.bank import ClientBank
from pfl_lightning.methods.chunks import Chunks
from pfl_lightning.methods.evaluation import judge_clients, log_scores
from pfl_lightning.methods.hyperparameters import plain_values
from pfl_lightning.methods.training import train_clients
from pfl_lightning.metrics import ClientAccuracy, ClientLoss, ClientScore
from pfl_lightning.models import MLP, Network, NetworkFactory, Part, start_network
from pfl_lightning.seeding import Key
from pfl_lightning.server import Weighting
from pfl_lightning.system import Clock
from pfl_lightning.tree import Params, Tree, select


class Method(pl.LightningModule):
    """A federated method: one communication round is one training step.

    Rule of a round (the defaults make it FedAvg)::

        received_i = shared, and what client i keeps          # broadcast
        trained_i  = local(received_i) on client i's examples # local, all participants at once
        keep_i     = the kept part of trained_i
        shared     = shared - server_lr * (shared - sum_i weight_i * trained_i)

    A method says which part a client ``keeps``, which part it ``refits`` before it is judged, and what it does in
    ``local``; everything else has a default. Clients are judged by two models: the shared part with what they keep
    (``stored``, or ``global`` where they keep nothing), and the same with one part refitted on their training samples
    (``refitted``).

    A subclass does not change a default of these arguments: on the command line it would depend on the order of the
    options whether the new default holds.

    Args:
        network: Builds the network; the data set tells the shape of an input and the number of classes.
        head_layers: How many layers with parameters form the head, counted from the end; by default
            ``usual_head_layers`` of the method.
        epochs: Local passes over a client's training samples in a round.
        batch_size: Samples in a local batch.
        lr: Local learning rate; the default is that of SRPFL's code, since FedRep can diverge with the paper's 0.1.
        momentum: Local momentum; it starts at zero in every phase; by default ``usual_momentum`` of the method.
        weight_decay: Local L2 penalty on weights, not on biases; by default ``usual_weight_decay`` of the method.
        weighting: Weight of an upload: by its client's training ``samples``, or ``uniform``.
        eval_epochs: Epochs of refitting, on a copy, before a client is judged; 0 for none.
        eval_momentum: Momentum of refitting.
        batch_norm: Whether the server averages the running statistics of shared BatchNorm layers (``average``) or
            clients keep their own (``local``).
        server_optimizer: Takes the server's step along the mean change of the clients; SGD with rate 1 sets the mean.
        backend: How clients are computed: ``auto`` chooses by a fixed rule, ``sequential`` is the reference.
        chunk_size: Clients at once; by default their largest tensor takes 32 MiB on a CPU, all of them 1 GiB elsewhere.
    """

    keeps: ClassVar[Part] = "nothing"
    refits: ClassVar[Part] = "head"
    usual_head_layers: ClassVar[int] = 1
    usual_momentum: ClassVar[float] = 0.0
    usual_weight_decay: ClassVar[float] = 1e-4

    network: Network
    clients: ClientBank

    def __init__(
        self,
        network: NetworkFactory = MLP,
        head_layers: PositiveInt | None = None,
        epochs: PositiveInt = 1,
        batch_size: PositiveInt = 10,
        lr: PositiveFloat = 0.01,
        momentum: ClosedUnitInterval | None = None,
        weight_decay: NonNegativeFloat | None = None,
        weighting: Weighting = "samples",
        eval_epochs: NonNegativeInt = 10,
        eval_momentum: ClosedUnitInterval = 0.5,
        batch_norm: Literal["average", "local"] = "average",
        server_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = lambda params: SGD(params, lr=1.0),
        backend: BackendName = "auto",
        chunk_size: PositiveInt | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.save_hyperparameters(ignore=["network", "server_optimizer"])
        self.make_network, self.server_optimizer = network, server_optimizer
        self.head_layers = head_layers or self.usual_head_layers
        self.epochs, self.batch_size, self.lr, self.weighting = epochs, batch_size, lr, weighting
        self.momentum = self.usual_momentum if momentum is None else momentum
        self.weight_decay = self.usual_weight_decay if weight_decay is None else weight_decay
        self.eval_epochs, self.eval_momentum = eval_epochs, eval_momentum
        self.batch_norm, self.backend, self.chunk_size = batch_norm, backend, chunk_size
        self.clock = Clock()
        self.scores = nn.ModuleDict()

    def build(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        num_clients: int,
        seed: int = 0,
        pretrained: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        """Make the network and one row per client of what they keep, once.

        Args:
            input_shape: Shape of one input.
            num_classes: Number of classes.
            num_clients: Number of clients.
            seed: Seed of the initial network.
            pretrained: Tensors that it starts with, by name.

        Raises:
            PflError: If the network does not suit the inputs, the method or the backend.
        """
        if hasattr(self, "clients"):
            return
        shape = tuple(map(int, input_shape))  # without range checks, whose classes a safe checkpoint cannot hold
        self.shape = {"input_shape": shape, "num_classes": int(num_classes), "num_clients": int(num_clients)}
        self.network = start_network(self.make_network, input_shape, num_classes, seed, pretrained)
        self.engine = Engine(self.network, self.backend, self.chunk_size)
        self.parts = self.network.parts(self.head_layers)
        if self.keeps in ("head", "body") and not self.parts["body"]:
            raise PflError(
                f"model.network: {type(self).__name__} needs a body; {type(self.network).__name__} is one layer"
            )
        statistics = frozenset(name for name, _ in self.network.named_buffers())
        self.kept = self.parts[self.keeps] | (statistics if self.batch_norm == "local" else frozenset())
        self.shared = self.parts["all"] - self.kept
        tensors = self.network.state_dict()
        self.chunks = Chunks(self.chunk_size, [tensor.nbytes for tensor in tensors.values()])
        self.clients = ClientBank(select(tensors, self.kept), num_clients)

    # What a method is

    def local(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """What the clients do in a round; by default they train everything.

        Args:
            cohort: Training examples of the clients.
            received: All tensors, the shared ones first as the server sent them.
            key: What local randomness is drawn for.

        Returns:
            The tensors after local training, and each client's training loss, ``[cohort]``.
        """
        return self.engine.train(cohort, received, self.phase("all", self.epochs), (*key, "all"))

    def judge(self, train: Examples, key: Key) -> Iterator[tuple[str, Params]]:
        """The models by which clients are judged, in the order of ``judged_models``.

        Args:
            train: Their training examples.
            key: What the randomness of refitting is drawn for.

        Yields:
            The model's name and its tensors for these clients.
        """
        received = self.received(train.ids)
        for name in self.judged_models:
            if name == "refitted":
                phase = replace(self.phase(self.refits, self.eval_epochs), momentum=self.eval_momentum)
                yield name, self.engine.train(train, received, phase, key)[0]
            else:
                yield name, received

    @property
    def judged_models(self) -> tuple[str, ...]:
        """Names of the models by which clients are judged; the first one is for model selection."""
        refitted = ("refitted",) if self.eval_epochs and self.refits != "nothing" else ()
        return ("global", *refitted) if self.keeps == "nothing" else (*refitted, "stored")

    # What every method shares

    def phase(self, part: Part, epochs: int, lr: float | None = None) -> Phase:
        """A local phase that moves one part of the network, with the method's own settings."""
        return Phase(self.parts[part], epochs, self.batch_size, lr or self.lr, self.momentum, self.weight_decay)

    def received(self, ids: Tensor) -> Params:
        """What clients start a round with: the shared tensors, and their own kept ones, ``[cohort, ...]``."""
        tensors = {name: tensor.detach() for name, tensor in self.network.state_dict(keep_vars=True).items()}
        return Params(select(tensors, self.shared), self.clients.gather(ids))

    def training_step(self, batch: Round, batch_idx: int) -> None:
        """One communication round."""
        assert batch.round_index == self.clock.rounds, "the loader and the method disagree on the round"
        mean, loss = train_clients(self, batch)
        self.server_step(mean)
        self.clock.advance(batch.times, batch.communication_time)
        self.log_round(loss, len(batch.examples))

    def server_step(self, mean: Tree) -> None:
        """Let the server optimizer step along the pseudo-gradient ``shared - mean``; statistics become the mean."""
        optimizer = self.server
        optimizer.zero_grad()
        for name, parameter in self.network.named_parameters():
            if name in mean:
                parameter.grad = parameter.detach() - mean[name]
        optimizer.step()
        for name, statistic in self.network.named_buffers():
            if name in mean:
                statistic.copy_(mean[name])

    def log_round(self, loss: Tensor, cohort_size: int) -> None:
        """Log what a round did."""
        self.log_clock()
        self.log("train/loss", loss, prog_bar=True)
        self.log("system/cohort", float(cohort_size), prog_bar=True)

    def log_clock(self) -> None:
        """Log simulated seconds at the number of rounds completed, which is TensorBoard's step."""
        self.log("step", float(self.clock.rounds))
        self.log_dict(self.clock.scalars(), prog_bar=True)

    def validation_step(self, batch: Judgement, batch_idx: int) -> None:
        """Judge some clients by each of their models, on each split."""
        judge_clients(self, batch)

    def on_validation_epoch_start(self) -> None:
        """Stop a run that has diverged, with a PflError, before its state is judged and saved."""
        loss = self.trainer.callback_metrics.get("train/loss")
        if loss is not None and not torch.isfinite(loss):
            raise PflError(f"training diverged by round {self.clock.rounds}; try a smaller model.lr than {self.lr}")

    def on_validation_epoch_end(self) -> None:
        """Log how the scores are spread over the clients."""
        self.log_clock()
        log_scores(self)

    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end

    # Lightning's life cycle

    def setup(self, stage: str) -> None:
        """Build the network for the data set, and one metric per split and judged model."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        assemble(self, data)
        for split in data.held_out_splits:
            for model in self.judged_models:
                kind = ClientLoss if data.regression else ClientAccuracy
                self.scores[f"{split}/{model}"] = kind(data.judged_clients)

    def on_test_start(self) -> None:
        """Give new clients the start model's kept part."""
        if new_clients := self.trainer.datamodule.new_clients:  # type: ignore[attr-defined]
            self.clients = ClientBank(select(self.network.state_dict(), self.kept), new_clients)

    @property
    def server(self) -> LightningOptimizer:
        """The server's optimizer, the only one that Lightning knows."""
        return cast(LightningOptimizer, self.optimizers())

    @property
    def metrics(self) -> dict[str, ClientScore]:
        """The clients' scores of the current evaluation, by ``split/model``."""
        return cast(dict[str, ClientScore], dict(self.scores.items()))

    def configure_optimizers(self) -> Optimizer:
        """Make the server's optimizer."""
        return self.server_optimizer(self.network.parameters())

    def on_train_start(self) -> None:
        """Apply the learning rate of this run; restoring a checkpoint has put back the old one."""
        for group in self.server.param_groups:
            group["lr"] = self.server.defaults["lr"]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the clock, and what it takes to build the method again."""
        checkpoint["clock"] = asdict(self.clock)
        checkpoint["engine"] = {"choices": self.engine.choices, "limit": self.chunks.limit}
        checkpoint["method"] = f"{type(self).__module__}.{type(self).__qualname__}"
        checkpoint["shape"] = self.shape
        checkpoint["hyper_parameters"] = plain_values(checkpoint.get("hyper_parameters", {}))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the clock; build the network if no data set has; take the float type, which Lightning sets late."""
        self.clock = Clock(**checkpoint["clock"])
        self.build(**checkpoint["shape"])
        self.chunks.limit = checkpoint.get("engine", {}).get("limit")  # version 0.1.0 did not write it at first
        dtypes = [tensor.dtype for tensor in checkpoint["state_dict"].values() if tensor.is_floating_point()]
        nn.ModuleList([self.network, self.clients]).to(dtypes[0])
