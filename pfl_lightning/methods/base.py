from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from pfl_lightning import processes
from pfl_lightning.bounds import ClosedUnitInterval, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pfl_lightning.client import BackendName, Engine, Examples, LossFunction, loss_of_samples
from pfl_lightning.data import Round
from pfl_lightning.errors import PflError
from pfl_lightning.federation.chunks import Chunks
from pfl_lightning.federation.client_states import ClientStates
from pfl_lightning.federation.pretrained import take_weights
from pfl_lightning.federation.privacy import check_private
from pfl_lightning.federation.schedule import LRSchedule, Schedule
from pfl_lightning.federation.sparsity import Sparsity
from pfl_lightning.federation.traffic import Traffic
from pfl_lightning.methods.evaluation import Evaluated
from pfl_lightning.methods.hooks import warn_of_unused
from pfl_lightning.models import MLP, Head, InputKind, NetworkFactory, Part, start_network
from pfl_lightning.seeding import Key
from pfl_lightning.server import Aggregator, Upload, Weighting, client_weights
from pfl_lightning.strict import import_path
from pfl_lightning.system import model_bits
from pfl_lightning.tree import Params, Tree, prefixed, select

OBJECTS = (
    "network",
    "loss",
    "lr_schedule",
    "server_optimizer",
    "aggregator",
    "sparsity",
    "topology",
)  # no plain arguments
LOSS = "train/loss"  # entry of the training losses among the uploads


class Method(Evaluated):
    """A federated method: one communication round is one training step.

    Rule of a round (the defaults make it FedAvg):

        cohort     = select_clients(round)                            # which clients train, and their weights
        received_i = shared, and what client i keeps          # broadcast
        trained_i  = local_update(received_i) on client i's examples # all clients of the cohort at once
        keep_i     = the kept part of trained_i
        shared     = shared - server_lr * (shared - sum_i weight_i * trained_i)    # server_update

    A method declares which part of the network a client ``keeps``, ``trains`` and ``finetunes``, whether it keeps a
    second (``personal``) model, and what it does in ``local_update``; everything else has a default. ``Evaluated``
    says which models clients are evaluated with.

    Subclasses must not change the defaults of these arguments, which on the command line would depend on the order of
    the options. To remove one that makes no sense, pass a fixed value: ``super().__init__(eval_epochs=0, **kwargs)``.

    Args:
        network: Network to train. Its input shape and number of classes come from the data set.
        pretrained: File with the weights that the network starts with: what ``torch.save`` wrote of a module's
            ``state_dict``, or a checkpoint. Default: random weights, but for what the data set has.
        head: The head: a number of layers, counted from the output (those without parameters do not count), or the
            names of layers, such as ``fc``. Default: set by the method (usually 1).
        loss: Loss of each sample, from outputs and targets: a module without parameters, or from Python a function; see
            ``sample_losses``. Default: cross-entropy, or half the squared error of a regression.
        epochs: Local epochs per round.
        epoch_steps: Mini-batches per local epoch, drawn at random. Default: all. With 1, ``epochs`` counts mini-batch
            steps, and so do a method's other options in epochs; fine-tuning always takes full epochs.
        batch_size: Local mini-batch size.
        lr: Local learning rate. The default is from SRPFL's code; FedRep can diverge with the paper's 0.1.
        lr_decay: Factor applied to the local learning rates every ``lr_decay_every`` rounds, except when fine-tuning.
        lr_decay_every: Rounds between two decays.
        lr_schedule: Scheduler of torch that steps once a round on a rate of 1: the factor of the local learning rates,
            except when fine-tuning. Default: that of ``lr_decay``.
        momentum: Local momentum, reset to zero in every phase. Default: set by the method (usually 0).
        weight_decay: Local weight decay (L2 penalty). Default: set by the method (usually 1e-4).
        decay_biases: Apply ``weight_decay`` to biases too, as torch does.
        clip_norm: Maximum norm of a client's gradient in a local step. Default: no clipping.
        weighting: Weights of the uploads: by training ``samples``, or ``uniform``.
        eval_epochs: Epochs of fine-tuning before a client is evaluated, on a copy that is then discarded; 0 for none.
        eval_momentum: Momentum when fine-tuning.
        batch_norm: Running statistics of shared BatchNorm layers: the server's ``average``, or ``local`` to a client.
        server_optimizer: Applies the mean change of the clients to the shared model; SGD with rate 1 sets the mean.
        backend: How clients are run: ``sequential`` (one by one, the reference), ``batched``, or ``auto`` (fixed rule).
        chunk_size: Clients in memory at once. Default: 32 MiB of their largest tensor on a CPU, 1 GiB elsewhere.
        aggregator: Adds up the uploads and training losses for the server, which learns sums alone. Default: in the
            clear (``Aggregator``); ``SecureAggregator`` masks each upload, ``DPAggregator`` adds noise.
        sparsity: A penalty that makes local models sparse, and the pruning of what is sent; default: neither.
    """

    trains: ClassVar[Part] = "all"
    mixes: ClassVar[Part] = "nothing"  # with the models of other clients, without a server
    usual_head: ClassVar[int] = 1
    usual_momentum: ClassVar[float] = 0.0
    usual_weight_decay: ClassVar[float] = 1e-4

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Warn about methods that are never called, such as misspelled hooks."""
        super().__init_subclass__(**kwargs)
        warn_of_unused(cls, Method)

    def __init__(
        self,
        network: NetworkFactory = MLP,
        pretrained: str | None = None,
        head: Head | None = None,
        loss: nn.Module | LossFunction | None = None,
        epochs: PositiveInt = 1,
        epoch_steps: PositiveInt | None = None,
        batch_size: PositiveInt = 10,
        lr: PositiveFloat = 0.01,
        lr_decay: PositiveFloat = 1.0,
        lr_decay_every: PositiveInt = 1,
        lr_schedule: LRSchedule | None = None,
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
        aggregator: Aggregator | None = None,
        sparsity: Sparsity = Sparsity(),
    ) -> None:
        super().__init__(server_optimizer, aggregator or Aggregator())
        self.save_hyperparameters(ignore=list(OBJECTS))
        self.make_network, self.pretrained, self.head = network, pretrained, head or self.usual_head
        self.epochs, self.epoch_steps, self.batch_size = epochs, epoch_steps, batch_size
        self.lr, self.schedule = lr, Schedule(lr_schedule, lr_decay, lr_decay_every)
        self.own_loss = loss_of_samples(loss)
        self.given = {"loss": import_path(loss), "lr_schedule": import_path(lr_schedule)}
        self.momentum = self.usual_momentum if momentum is None else momentum
        self.weight_decay = self.usual_weight_decay if weight_decay is None else weight_decay
        self.decay_biases, self.clip_norm, self.weighting = decay_biases, clip_norm, weighting
        self.eval_epochs, self.eval_momentum = eval_epochs, eval_momentum
        self.batch_norm, self.backend, self.chunk_size, self.sparsity = batch_norm, backend, chunk_size, sparsity

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
        """Make the network and the client states with one row per client; see ``Lifecycle.build``."""
        shape = tuple(map(int, input_shape))  # plain ints: range-checked types cannot be loaded with weights_only
        self.built_for = {"input_shape": shape, "num_classes": int(num_classes), "num_clients": int(num_clients)}
        self.built_for |= {"test_only": test_only, "input_kind": input_kind}
        self.test_only = test_only
        self.network = start_network(self.make_network, input_shape, num_classes, seed, pretrained, input_kind)
        self.engine = Engine(self.network, self.backend, self.chunk_size, self.progress.add, self.made_loss())
        self.parts = self.network.parts(self.head)
        if weights is not None:
            self.taken = take_weights(self.network, weights, self.parts["head"], str(self.pretrained))
        if {self.keeps, self.trains, self.mixes} & {"head", "body"} and not self.parts["body"]:
            raise PflError(f"model.network: {type(self).__name__} needs a body; {self.network.kind} has only one layer")
        statistics = frozenset(name for name, _ in self.network.named_buffers())
        self.kept = self.parts[self.keeps] | (statistics if self.batch_norm == "local" else frozenset())
        self.shared = self.parts["all"] - self.kept
        check_private(
            self.aggregator,
            self.weighting,
            bool(self.shared & statistics),
            type(self).select_clients is not Method.select_clients,
        )
        tensors = self.network.state_dict()
        start = self.initial_state(tensors, num_clients, seed)
        self.clients = ClientStates(start)
        one_client = {**tensors, **{name: stack[0] for name, stack in start.items()}}
        self.chunks = Chunks(self.chunk_size, [tensor.nbytes for tensor in one_client.values()], self.progress)

    # What a method may override

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """What clients keep before they have taken part; also for clients that are new to a finished run.

        Args:
            tensors: The server's tensors, ``[...]``.
            num_clients: Number of clients.
            seed: Seed for random states.

        Returns:
            The stacks of ``clients``, ``[clients, ...]``, under the network's names or others.
        """
        kept = {**select(tensors, self.kept), **(prefixed("personal", tensors) if self.personal else {})}
        return {name: tensor.expand(num_clients, *tensor.shape) for name, tensor in kept.items()}

    def select_clients(self, batch: Round) -> Round:
        """Choose which participants train, with ``batch.take``; by default all of them, weighted by ``weighting``."""
        return batch

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Local work of the clients in a round; by default they train one part of the network.

        Args:
            cohort: Training examples of the clients.
            received: All tensors that the clients start with: shared ones from the server, and their own.
            key: Key for local randomness.

        Returns:
            The tensors after local training, and each client's training loss, ``[cohort]``.
        """
        return self.engine.train(cohort, received, self.phase(self.trains, self.epochs), (*key, self.trains))

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Update the shared model: the server's optimizer takes the pseudo-gradient ``shared - mean``.

        BatchNorm statistics become the mean. A method without a server mixes ``clients`` here and passes on their mean.

        Args:
            mean: Weighted mean of the uploads; tensors that no client changed are missing.
            batch: The round, as returned by ``select_clients``.
        """
        self.optimizer.zero_grad()
        for name, parameter in self.network.named_parameters():
            if name in mean:
                parameter.grad = parameter.detach() - mean[name]
        self.optimizer.step()
        for name, statistic in self.network.named_buffers():
            if name in mean:
                statistic.copy_(mean[name])

    def count_traffic(self, batch: Round, up: Traffic, down: Traffic) -> None:
        """Count what is sent in a round beside the uploads to ``aggregator``, after local training.

        By default every participant receives the shared model. Methods whose models travel otherwise count these.

        Args:
            batch: The round, as returned by ``select_clients``.
            up: Counts what clients send, to the server or to each other.
            down: Counts what the server sends.
        """
        shared = select(self.network.state_dict(), self.shared)
        down.add({name: tensor[None] for name, tensor in shared.items()}, {0: len(batch.participants)})

    # What every method shares

    def received(self, ids: Tensor) -> Params:
        """Tensors that clients start a round with: the shared ones, and their own, ``[cohort, ...]``."""
        tensors = {name: tensor.detach() for name, tensor in self.network.state_dict(keep_vars=True).items()}
        return Params(select(tensors, self.shared), self.clients.gather(ids))

    def sent(self, models: Tree) -> Tree:
        """Some models as they are sent: their parameters pruned if ``sparsity`` says so, ``[models, ...]`` each."""
        return {**models, **self.sparsity.pruned(select(models, self.engine.trainable))}

    def prune_shared(self, names: Iterable[str]) -> None:
        """Prune some parameters of the shared model in place, so that clients receive them like this."""
        parameters = select(self.shared_parameters, names)
        if self.sparsity.prune:
            for name, stack in self.sparsity.pruned({n: t[None] for n, t in parameters.items()}).items():
                parameters[name].copy_(stack[0])

    def training_step(self, batch: Round, batch_idx: int) -> None:
        """One communication round."""
        assert batch.round_index == self.clock.rounds, "the loader and the method disagree on the round"
        if len(batch.dropped) and len(batch.examples) < self.aggregator.fewest:
            self.skip_round(batch)
            return
        uploaded = self.aggregator.bytes
        batch = self.select_clients(batch._replace(weights=client_weights(batch.examples.counts, self.weighting)))
        mean, loss = self.train_clients(batch)
        self.record(batch, self.aggregator.bytes - uploaded)
        self.server_update(mean, batch)
        self.prune_shared(mean)
        self.advance_clock(batch)
        self.log_round(batch, loss)

    def train_clients(self, batch: Round) -> tuple[Tree, Tensor]:
        """Train the participants of a round, and store what they keep in ``clients``.

        Returns:
            Weighted mean of their uploads, and of their training losses.
        """
        dtype, key = next(self.network.parameters()).dtype, (batch.seed, "train", batch.round_index)
        weights = batch.weights.to(self.device, dtype, non_blocking=True)
        sums = (
            self.aggregator if self.shared else Aggregator()
        )  # where nothing is shared, the losses are for the log alone
        received = select(self.network.state_dict(), self.shared)
        total, paper = sums.start(batch.participants, key, packed=self.sparsity.prune, received=received), 0
        total.abstain(batch.left_out)
        total.drop(batch.dropped)

        def work(start: int, cohort: Examples) -> tuple[Examples, Tree, Upload, int]:
            trained, losses = self.local_update(cohort, self.received(cohort.ids), key)
            kept, upload = select(trained.own, self.clients.names), self.sent(select(trained.own, self.shared))
            share = weights[places[start : start + len(cohort)]]
            bits = model_bits(select(upload, self.engine.trainable), total.packed)
            return cohort, kept, total.encode(cohort.host_ids, share, {**upload, LOSS: losses}), bits

        with self.share_of(batch.examples, changes=True) as (places, mine):
            cost, chunks = self.training_cost(mine), self.chunks.map(work, mine)
            for cohort, kept, part, bits in self.progress.over("training", cost.visits, chunks):
                total.add(cohort.host_ids, part)
                self.clients.scatter(cohort.ids, kept)
                paper += bits
        total.join(some_lack=len(batch.examples) < processes.count())
        bits, samples = map(sum, zip(*processes.gathered((paper, int(cost.samples.sum()))), strict=True))
        self.ledger.paper += bits / len(batch.participants)
        self.ledger.samples += samples
        mean = {name: tensor.to(dtype) for name, tensor in total.result().items()}
        return mean, mean.pop(LOSS)
