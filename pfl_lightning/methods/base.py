from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import lightning.pytorch as pl
from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from pfl_lightning.client import BackendName, Engine, Examples, Phase
from pfl_lightning.data import Judgement, Round
from pfl_lightning.errors import PflError
from pfl_lightning.methods.bank import ClientBank
from pfl_lightning.methods.chunks import Chunks
from pfl_lightning.methods.hooks import warn_of_unused
from pfl_lightning.methods.lifecycle import Lifecycle
from pfl_lightning.models import MLP, NetworkFactory, Part, start_network
from pfl_lightning.seeding import Key
from pfl_lightning.server import Weighting, client_weights
from pfl_lightning.tree import Params, Tree, add_to, mix, select, under


class Method(Lifecycle):
    """A federated method: one communication round is one training step.

    Rule of a round (the defaults make it FedAvg)::

        cohort     = choose(round)                            # who trains, and with which weight
        received_i = shared, and what client i keeps          # broadcast
        trained_i  = local(received_i) on client i's examples # local, all participants at once
        keep_i     = the kept part of trained_i
        shared     = shared - server_lr * (shared - sum_i weight_i * trained_i)    # server_step

    A method says which part a client ``keeps``, ``trains``, and ``refits`` before it is judged, whether it keeps a
    second, ``personal`` model, and what it does in ``local``; everything else has a default. Clients are judged by two
    models: the shared part with what they keep (``stored``, or ``global`` where they keep nothing), and the same with
    one part refitted on their training samples (``refitted``); with a second model by that and the ``global`` one.

    A subclass does not change a default of these arguments: on the command line it would depend on the order of the
    options whether the new default holds. What makes no sense for it is not offered if it passes a value of its own,
    as in ``super().__init__(eval_epochs=0, **kwargs)``.

    Args:
        network: Builds the network; the data set tells the shape of an input and the number of classes.
        head_layers: How many layers with parameters form the head, counted from the end; by default
            ``usual_head_layers`` of the method.
        epochs: Local passes over a client's training samples in a round.
        epoch_steps: Batches in a local epoch, drawn at random; all of them by default. With 1, ``epochs`` and its
            kin count single mini-batch steps.
        batch_size: Samples in a local batch.
        lr: Local learning rate; the default is that of SRPFL's code, since FedRep can diverge with the paper's 0.1.
        lr_decay: Factor of the local learning rates behind every ``lr_decay_every`` rounds; refitting has none.
        lr_decay_every: Rounds between two decays.
        momentum: Local momentum; it starts at zero in every phase; by default ``usual_momentum`` of the method.
        weight_decay: Local L2 penalty on weights; by default ``usual_weight_decay`` of the method.
        decay_biases: Whether ``weight_decay`` is for biases too, as in torch.
        clip_norm: Largest norm of a client's gradient in a local step; no limit by default.
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
    trains: ClassVar[Part] = "all"
    refits: ClassVar[Part] = "head"
    personal: ClassVar[bool] = False
    usual_head_layers: ClassVar[int] = 1
    usual_momentum: ClassVar[float] = 0.0
    usual_weight_decay: ClassVar[float] = 1e-4

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Warn the author of a function that nobody calls."""
        super().__init_subclass__(**kwargs)
        warn_of_unused(cls, Method)

    def __init__(
        self,
        network: NetworkFactory = MLP,
        head_layers: PositiveInt | None = None,
        epochs: PositiveInt = 1,
        epoch_steps: PositiveInt | None = None,
        batch_size: PositiveInt = 10,
        lr: PositiveFloat = 0.01,
        lr_decay: PositiveFloat = 1.0,
        lr_decay_every: PositiveInt = 1,
        momentum: ClosedUnitInterval | None = None,
        weight_decay: NonNegativeFloat | None = None,
        decay_biases: bool = False,
        clip_norm: PositiveFloat | None = None,
        weighting: Weighting = "samples",
        eval_epochs: NonNegativeInt = 10,
        eval_momentum: ClosedUnitInterval = 0.5,
        batch_norm: Literal["average", "local"] = "average",
        server_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = lambda params: SGD(params, lr=1.0),
        backend: BackendName = "auto",
        chunk_size: PositiveInt | None = None,
    ) -> None:
        super().__init__(server_optimizer)
        self.save_hyperparameters(ignore=["network", "server_optimizer"])
        self.make_network = network
        self.head_layers = head_layers or self.usual_head_layers
        self.epochs, self.epoch_steps, self.batch_size = epochs, epoch_steps, batch_size
        self.lr, self.lr_decay, self.lr_decay_every = lr, lr_decay, lr_decay_every
        self.momentum = self.usual_momentum if momentum is None else momentum
        self.weight_decay = self.usual_weight_decay if weight_decay is None else weight_decay
        self.decay_biases, self.clip_norm, self.weighting = decay_biases, clip_norm, weighting
        self.eval_epochs, self.eval_momentum = eval_epochs, eval_momentum
        self.batch_norm, self.backend, self.chunk_size = batch_norm, backend, chunk_size

    def build(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        num_clients: int,
        seed: int = 0,
        pretrained: Mapping[str, Tensor] = MappingProxyType({}),
        test_only: bool = False,
    ) -> None:
        """Make the network and one row per client of what they keep; see ``Lifecycle.build``."""
        shape = tuple(map(int, input_shape))  # without range checks, whose classes a safe checkpoint cannot hold
        self.built_for = {"input_shape": shape, "num_classes": int(num_classes), "num_clients": int(num_clients)}
        self.built_for["test_only"] = self.test_only = test_only
        self.network = start_network(self.make_network, input_shape, num_classes, seed, pretrained)
        self.engine = Engine(self.network, self.backend, self.chunk_size)
        self.parts = self.network.parts(self.head_layers)
        if {self.keeps, self.trains} & {"head", "body"} and not self.parts["body"]:
            raise PflError(
                f"model.network: {type(self).__name__} needs a body; {type(self.network).__name__} is one layer"
            )
        statistics = frozenset(name for name, _ in self.network.named_buffers())
        self.kept = self.parts[self.keeps] | (statistics if self.batch_norm == "local" else frozenset())
        self.shared = self.parts["all"] - self.kept
        tensors = self.network.state_dict()
        start = self.at_first(tensors)
        self.clients = ClientBank(start, num_clients)
        self.chunks = Chunks(self.chunk_size, [tensor.nbytes for tensor in {**tensors, **start}.values()])

    # What a method is

    def at_first(self, tensors: Tree) -> Tree:
        """What a client keeps before it has taken part, also a new client of a finished run.

        Args:
            tensors: The server's tensors, ``[...]``.

        Returns:
            What ``clients`` holds of each client, without the client axis, under the network's names or others.
        """
        kept = select(tensors, self.kept)
        return {**kept, **under("personal.", tensors)} if self.personal else kept

    def choose(self, batch: Round) -> Round:
        """Who of a round's participants trains, and with which weight; by default everyone, by ``weighting``.

        Args:
            batch: The round; ``batch.take`` leaves some of its clients.
        """
        return batch._replace(weights=client_weights(batch.examples.counts, self.weighting))

    def local(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """What the clients do in a round; by default they train one part of the network.

        Args:
            cohort: Training examples of the clients.
            received: All tensors, the shared ones first as the server sent them.
            key: What local randomness is drawn for.

        Returns:
            The tensors after local training, and each client's training loss, ``[cohort]``.
        """
        return self.engine.train(cohort, received, self.phase(self.trains, self.epochs), (*key, self.trains))

    def server_step(self, mean: Tree, batch: Round) -> None:
        """What the server does with the clients' mean: its optimizer steps along the pseudo-gradient ``shared - mean``.

        Statistics become the mean. A method without a server mixes ``clients`` here, and hands on their mean.

        Args:
            mean: Weighted mean of what the clients have uploaded; what did not move is not in it.
            batch: The round, as ``choose`` left it.
        """
        self.optimizer.zero_grad()
        for name, parameter in self.network.named_parameters():
            if name in mean:
                parameter.grad = parameter.detach() - mean[name]
        self.optimizer.step()
        for name, statistic in self.network.named_buffers():
            if name in mean:
                statistic.copy_(mean[name])

    @property
    def judged_models(self) -> tuple[str, ...]:
        """Names of the models by which clients are judged; the first one is for model selection."""
        if self.personal:
            return ("personal", "global")
        refitted = ("refitted",) if self.eval_epochs and self.refits != "nothing" and not self.test_only else ()
        return ("global", *refitted) if self.keeps == "nothing" else (*refitted, "stored")

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
                yield name, self.engine.train(train, received, self.refitting, key)[0]
            else:
                yield name, received.under("personal") if name == "personal" else received

    # What every method shares

    def phase(self, part: Part, epochs: int, lr: float | None = None) -> Phase:
        """A local phase of the current round that moves one part of the network, with the method's own settings."""
        rate = (lr or self.lr) * self.lr_decay ** (self.clock.rounds // self.lr_decay_every)
        phase = Phase(self.parts[part], epochs, self.batch_size, rate, self.momentum, self.weight_decay)
        return replace(phase, decay_biases=self.decay_biases, steps=self.epoch_steps, clip_norm=self.clip_norm)

    @property
    def refitting(self) -> Phase:
        """The phase that refits a part before a client is judged."""
        return replace(self.phase(self.refits, self.eval_epochs), lr=self.lr, momentum=self.eval_momentum, steps=None)

    def received(self, ids: Tensor) -> Params:
        """What clients start a round with: the shared tensors, and their own kept ones, ``[cohort, ...]``."""
        tensors = {name: tensor.detach() for name, tensor in self.network.state_dict(keep_vars=True).items()}
        return Params(select(tensors, self.shared), self.clients.gather(ids))

    def training_step(self, batch: Round, batch_idx: int) -> None:
        """One communication round."""
        assert batch.round_index == self.clock.rounds, "the loader and the method disagree on the round"
        batch = self.choose(batch)
        mean, loss = self.train_clients(batch)
        self.server_step(mean, batch)
        self.clock.advance(batch.times, batch.communication_time)
        self.log_round(loss, len(batch.examples))

    def train_clients(self, batch: Round) -> tuple[Tree, Tensor]:
        """Train the participants of a round; what they keep goes into ``clients``.

        Returns:
            The weighted mean of what they upload, and that of their training losses.
        """
        dtype = next(self.network.parameters()).dtype
        weights = batch.weights.to(self.device, dtype, non_blocking=True)

        def work(start: int, cohort: Examples) -> tuple[Tensor, Tree, Tree, Tensor]:
            trained, losses = self.local(cohort, self.received(cohort.ids), (batch.seed, "train", batch.round_index))
            share = weights[start : start + len(cohort)]
            kept, upload = select(trained.own, self.clients.names), select(trained.own, self.shared)
            return cohort.ids, kept, mix(share, upload), (share * losses).sum()

        mean: Tree = {}
        loss = weights.new_zeros(())
        for ids, kept, share_of_mean, share_of_loss in self.chunks.map(work, batch.examples):
            add_to(mean, share_of_mean)
            self.clients.scatter(ids, kept)
            loss += share_of_loss
        return mean, loss

    def validation_step(self, batch: Judgement, batch_idx: int) -> None:
        """Judge some clients by each of their models, on each split."""
        key = (batch.seed, "refit", self.clock.rounds)

        def work(start: int, train: Examples) -> list[tuple[str, tuple[Tensor, ...]]]:
            judged = {split: examples.rows(start, start + len(train)) for split, examples in batch.judged.items()}
            return [
                (f"{split}/{model}", (examples.ids, examples.device_counts, *self.engine.score(examples, params)))
                for model, params in self.judge(train, key)
                for split, examples in judged.items()
            ]

        for scores in self.chunks.map(work, batch.train):
            for name, score in scores:
                self.metrics[name].update(*score)


def method_of(module: pl.LightningModule) -> Method:
    """A module that callbacks are called with, as the method that it is.

    Raises:
        PflError: If it is another module.
    """
    if not isinstance(module, Method):
        raise PflError(f"callbacks: {type(module).__name__} is not possible with these; allowed: a Method")
    return module
