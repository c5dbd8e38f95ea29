"""The base of all methods: a communication round, which is that of FedAvg unless a method says otherwise."""

import difflib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial, reduce
from math import prod
from types import MappingProxyType
from typing import Any, ClassVar, Literal, cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from pfl_lightning import processes
from pfl_lightning.bounds import PositiveInt
from pfl_lightning.client import (
    BackendName,
    Engine,
    Examples,
    LocalTraining,
    Loss,
    Penalty,
    Phase,
    total,
)
from pfl_lightning.data import EvalBatch, FederatedDataModule, Round, federated
from pfl_lightning.data.datamodule import NewHead
from pfl_lightning.errors import PflError
from pfl_lightning.federation.accounting import Accounting, Traffic, Volume
from pfl_lightning.federation.architectures import Architecture, build_architectures, groups_of, split_for_threads
from pfl_lightning.federation.checkpoints import Content
from pfl_lightning.federation.checks import (
    Need,
    check_aggregator,
    check_classes,
    check_networks,
    check_never_training,
    check_participation,
    check_task,
    check_uplink,
    server_read_refusal,
)
from pfl_lightning.federation.client_models import Heads, client_model
from pfl_lightning.federation.client_states import ClientStates, ServerState
from pfl_lightning.federation.cohort import LOSS, Cohort, Progress, RoundResult, Trained
from pfl_lightning.federation.evaluator import Evaluator
from pfl_lightning.federation.own_training import own_eval_model, own_update, set_own_training
from pfl_lightning.federation.pretrained import read_weights
from pfl_lightning.federation.saved_method import restore_method, save_method
from pfl_lightning.federation.sparsity import Sparsity
from pfl_lightning.federation.uploads import round_key, sent_one_by_one, set_attackers, start_sum
from pfl_lightning.federation.versions import Versions
from pfl_lightning.models import (
    MLP,
    Architectures,
    Head,
    InputKind,
    LoRA,
    Network,
    NetworkFactory,
    Part,
    Parts,
    start_networks,
)
from pfl_lightning.objects import constructor_arguments, import_path, to_settings
from pfl_lightning.seeding import Key, seed_of
from pfl_lightning.server import Aggregator, Message, Weighting, client_weights
from pfl_lightning.tasks import Classification, Task
from pfl_lightning.tree import Params, Tree, assign, movable, prefixed, repeated, select, sum_type
from pfl_lightning.uplink import BITS, Step, rebase_stale_uploads

HOOKS = (
    *("extend_network", "complete_networks", "initial_state", "server_state", "broadcast", "select_clients"),
    *("local_update", "sample_losses", "server_update", "count_traffic"),
    *("advance_clock", "eval_models", "eval_model", "eval_network", "common_body"),
)


class Method(pl.LightningModule):
    """A federated method: one communication round is one training step.

    Rule of a round (the defaults make it FedAvg, with a server_lr of 1):

        cohort     = select_clients(round)                            # who trains, and weights
        received_i = broadcast(), and what client i keeps             # the shared part
        trained_i  = local_update(received_i) on client i's examples  # all clients at once
        keep_i     = the kept part of trained_i
        shared     = shared - server_lr * (shared - sum_i weight_i * trained_i)  # server_update

    A method declares which part of the network a client ``keeps`` and ``trains``, whether it keeps a second
    (``personal``) model, and what it does in ``local_update``; everything else has a default. A part has a name
    (``nothing``, ``head``, ``body``, ``all``), or is a pattern of names, or a kind of layers; see ``Parts``. Tensors
    whose names have one of ``uploads`` as their first word are summed up beside the shared model, by the same
    aggregator. It says what it ``needs``: ``classes``, ``features`` of a network whose head is known, or ``rounds``
    that all participants begin together; and whether it ``prunes`` models.

    Every method has the options below. The bases in ``methods/families`` add others, which a method inherits if its
    rule uses them: ``FineTuned`` fine-tunes before an evaluation, ``Averaging`` has the choices of a server that
    averages one model. Where the rule leaves no choice, a class attribute states it: ``weighting``, ``batch_norm``,
    ``fixed_local``. Subclasses must not change the defaults of arguments, which on the command line would depend on the
    order of the options.

    Clients are evaluated with the shared part plus what they keep (``stored``, or ``global`` if they keep nothing), or
    with their second, ``personal`` model and the ``global`` one. Clients that are new to a finished run are tested in
    the same way with every method: each trains a new head on the ``common_body``, which is frozen, in full epochs or
    single steps with the settings of the first round (``finetuned``); beside it stands the ``global`` model of the
    methods that have one. With ``data.new_head_epochs`` 0 they are evaluated by the method's own models instead, each
    as a client that has not taken part yet (Xiong et al., DePRL, AAAI 2024, arXiv:2312.10815, Tables 2 and 8).

    Args:
        network: Network to train. Its input shape and number of classes come from the data set.
        pretrained: File with the weights that the network starts with: what ``torch.save`` wrote of a module's
            ``state_dict``, or a checkpoint. Default: random weights, but for what the data set has.
        head: The head: a number of layers, counted from the output (those without parameters do not count), or the
            names of layers, such as ``fc``. Default: set by the method (usually 1).
        adapter: ``LoRA``: adapters of low rank train in the network, and beside them the head alone. Default: none.
        task: What the targets are, by which losses and scores are computed, such as ``Classification`` with a loss of
            your own. Default: the data set's.
        local: How clients train: batches, epochs, learning rate and optimizer.
        backend: How clients are run: ``sequential`` (one by one, the reference), ``batched``, or ``auto`` (fixed rule).
        chunk_size: Clients in memory at once. Default: 32 MiB of their largest tensor on a CPU, 1 GiB elsewhere.
        sparsity: A penalty that makes local models sparse, and the pruning of what is sent; default: neither.

    Attributes:
        network: The network with the server's tensors; made for a data set by ``build``, as is what follows.
        architectures: The networks of the clients. ``network``, ``engine``, ``parts``, ``kept`` and ``clients`` are of
            the first one, or while clients work of theirs.
        engine: Runs the local work of some clients at once.
        parts: Names of the tensors of each part of the network.
        kept: Names of the network's tensors that clients keep.
        shared: Names of the tensors that clients receive from the server.
        clients: What each client keeps.
        server: What the server keeps beside the network.
        memory: What the aggregator remembers from round to round.
        cohort: Runs the clients of a round in chunks and processes.
        own_training: How single clients train that have numbers of their own, by their numbers.
        local_sgd: What all local phases have in common: mini-batch SGD, or Adam, with the method's numbers.
        schedule: Factor of the local learning rates in each round.
        evaluator: The clients' scores and other metrics.
        accounting: Simulated time, bits and samples so far.
        versions: What clients received that have not uploaded yet.
        progress: How far the current round or evaluation is.
        init_args: Constructor arguments by name.
        built_for: Arguments of ``build``, such as the input shape and the number of classes; empty before.
        num_clients (int): Number of clients, also of those that never train; ``num_classes`` beside it. Both are there
            once the method is built.
        pretrained_report (str): A line that says which tensors a file of ``pretrained`` weights had.
    """

    display_name: ClassVar[str] = "Method"  # in tables and figures; by default the name of the class
    doubled_name: ClassVar[str] = "Method + doubling"  # the same with stage doubling
    # what evaluated models add to these names, if several are compared; by default the first one is, and adds nothing
    suffixes: ClassVar[Mapping[str, str]] = MappingProxyType({})

    keeps: Part = "nothing"
    trains: Part = "all"
    mixes: ClassVar[Part] = "nothing"  # with the models of other clients, without a server
    personal: ClassVar[bool] = False
    uploads: ClassVar[tuple[str, ...]] = ()
    weighting: Weighting = "samples"  # of the clients' uploads and losses
    batch_norm: Literal["average", "local"] = "average"  # running statistics of shared BatchNorm layers
    needs: ClassVar[tuple[Need, ...]] = ()  # of the data, the network and the participants
    prunes: ClassVar[bool] = True  # whether models can be pruned
    uploads_models: ClassVar[bool] = True  # whether uploads under the network's names are models
    usual_head: ClassVar[int] = 1
    usual_momentum: ClassVar[float] = 0.0
    usual_weight_decay: ClassVar[float] = 1e-4
    fixed_local: ClassVar[Mapping[str, Any]] = MappingProxyType({})  # what the rule sets of ``local``
    head_lr: float | None = None  # the head's own learning rate

    task: Task
    architectures: list[Architecture]
    network: Network
    engine: Engine
    parts: Parts
    kept: frozenset[str]
    shared: frozenset[str]
    clients: ClientStates

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Name the method; warn about names that are nearly those of hooks: nothing would call them."""
        super().__init_subclass__(**kwargs)
        cls.display_name = vars(cls).get("display_name", cls.__name__)
        cls.doubled_name = vars(cls).get("doubled_name", f"{cls.display_name} + doubling")
        cls.suffixes = vars(cls).get("suffixes", Method.suffixes)
        for name in vars(cls).keys() - dir(Method):
            if near := difflib.get_close_matches(name, HOOKS, n=1, cutoff=0.85):
                warnings.warn(f"{cls.__name__}.{name} is never called; did you mean {near[0]}?", stacklevel=2)

    def __init__(
        self,
        network: NetworkFactory = MLP,
        pretrained: str | None = None,
        head: Head | None = None,
        adapter: LoRA | None = None,
        task: Task | None = None,
        local: LocalTraining = LocalTraining(),
        backend: BackendName = "auto",
        chunk_size: PositiveInt | None = None,
        sparsity: Sparsity = Sparsity(),
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.init_args = constructor_arguments(Method)
        self.make_network = network
        self.pretrained = pretrained
        self.head = head or self.usual_head
        self.local = local
        self.backend = backend
        self.chunk_size = chunk_size
        self.sparsity = sparsity
        self.uplink: list[Step] = []
        self.aggregator = Aggregator()
        self.has_own_task = task is not None
        self.task = task or Classification()  # that of the data, when it is built
        self.adapter = adapter
        own_loss = task and task.init_args["loss"]
        self.function_paths = {"loss": import_path(own_loss), "lr_schedule": import_path(local.lr_schedule)}
        if sparsity.prune and not self.prunes:
            raise PflError(f"model.sparsity.prune: True is not possible with {type(self).__name__}; allowed: False")
        local.check(type(self).__name__, self.fixed_local)
        self.local_sgd = local.phase(frozenset({self.trains}), self.usual_momentum, self.usual_weight_decay)
        self.schedule = local.schedule()
        self.own_training: dict[int, LocalTraining] = {}
        self.progress = Progress()
        self.evaluator = Evaluator()
        self.accounting = Accounting(self.aggregator)
        self.versions = Versions()
        self.built_for: dict[str, Any] = {}
        self.test_only = False
        self.new_head: NewHead | None = None
        self.pretrained_report = ""
        self._newcomer: Tree = {}  # what new clients start with

    # What a method may override

    def extend_network(self, network: Network) -> None:
        """Add modules to a new network, which then are part of all models; by default none.

        Args:
            network: The network; see ``Network.extend_head``.
        """

    def complete_networks(self, networks: Architectures, seed: int) -> None:
        """Replace the clients' networks, in place, by those that they train; by default they stay.

        Args:
            networks: The networks, with ``extend_network`` and adapters done.
            seed: Seed of the initial networks.
        """

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """What clients keep before they have taken part; also for clients that are new to a finished run.

        Args:
            tensors: The server's tensors, ``[...]``.
            num_clients: Number of clients.
            seed: Seed for random states.

        Returns:
            The stacks of ``clients``, ``[clients, ...]``, under the network's names or others. They are
            copied, so they may be views. Those that ``super()`` returns are views of ``tensors``, which all clients
            share: ``clone()`` one before you change it in place.
        """
        personal = prefixed("personal", tensors) if self.personal else {}
        return repeated({**select(tensors, self.kept), **personal}, num_clients)

    def server_state(self, tensors: Tree) -> Tree:
        """What the server keeps beside the model, such as SCAFFOLD's control variate; by default nothing.

        Args:
            tensors: The network's tensors, ``[...]``.

        Returns:
            The first values of ``server``, by name, ``[...]``. Clients receive them as ``server.<name>``.
        """
        return {}

    def broadcast(self) -> Tree:
        """What each participant receives from the server: the shared part of the network, and ``server``."""
        return {**select(movable(self.network), self.shared), **prefixed("server", self.server.tree)}

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
            The tensors after local training, and each client's training loss, ``[cohort]``. Of tensors that are sent
            in fewer numbers than they have, there is beside them how many bits each client sends, such as
            ``bits.fc.weight``, ``[cohort]``.
        """
        return self.engine.train(cohort, received, self.phase(self.trains), (*key, self.trains))

    def sample_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of each sample, for training and evaluation; by default that of the task.

        Args:
            outputs: Outputs of the network, ``[samples, ...]``.
            targets: Targets, such as class labels, ``[samples, ...]``.

        Returns:
            Losses, ``[samples]``; each must depend on its own sample alone.
        """
        return self.task.losses(outputs, targets)

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Update the shared model: the server's optimizer takes the pseudo-gradient ``shared - mean``.

        BatchNorm statistics become the mean. A method without a server mixes ``clients`` here and passes on their mean.

        Args:
            mean: Weighted mean of the shared tensors, and of what else clients upload; tensors that no client changed
                are missing.
            batch: The round, as returned by ``select_clients``.
        """
        for name, parameter in self.network.named_parameters():
            if name in mean:
                parameter.grad = parameter.detach() - mean[name]
        self.optimizer.step()
        for name, statistic in self.network.named_buffers():
            if name in mean:
                assign(statistic, mean[name])

    def count_traffic(self, batch: Round, up: Traffic, down: Traffic) -> None:
        """Count what is sent in a round beside the uploads to ``aggregator``, after local training.

        By default each participant receives what ``broadcast`` says. Methods whose models travel otherwise count these.

        Args:
            batch: The round, as returned by ``select_clients``.
            up: Counts what clients send, to the server or to each other.
            down: Counts what the server sends.
        """
        down.add(self.broadcast(), len(batch.participants))

    def advance_clock(self, batch: Round) -> None:
        """Advance the simulated clock by a round; by default it lasts as long as its slowest participant."""
        self.accounting.advance(batch)

    @property
    def written_by_server(self) -> tuple[str, ...]:
        """How the names of what clients keep begin that a round changes for absent clients, too; by default none."""
        return ()

    @property
    def eval_models(self) -> tuple[str, ...]:
        """Names of the models that clients are evaluated with; the first one is used for model selection."""
        if self.personal:
            return ("personal", "global")
        return ("global",) if self.keeps == "nothing" else ("stored",)

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """One of the ``eval_models``, ``[cohort, ...]``.

        Args:
            model: Its name.
            train: The clients' training examples. Take from them only what the model needs: those that need none are
                also there without a data set.
            received: Tensors that the clients would start a round with.
            key: Key for the randomness of fine-tuning.
        """
        return received.under("personal") if model == "personal" else received

    def eval_network(self, model: str, params: Params) -> Network:
        """The network of one of the ``eval_models``: what predicts for a client; by default the one that it trains.

        Args:
            model: Its name.
            params: What ``eval_model`` has returned: the tensors of this network, and perhaps others.
        """
        return self.network

    @property
    def newcomer_network(self) -> Network:
        """The network of clients that are new to a finished run; by default that of the others."""
        return self.network

    def common_body(self) -> Tree:
        """The body on which new clients train their heads.

        It is the network's, except for what clients keep of it, or of their models where ``personal`` is true: that is
        the mean over all clients.
        """
        names = {f"personal.{name}" if self.personal else name: name for name in self.parts["body"]}
        means = self.clients.mean(names.keys() & set(self.clients.names))
        body = select(self.network.state_dict(), self.parts["body"])
        return {**body, **{names[name]: mean for name, mean in means.items()}}

    # The round

    def training_step(self, batch: Round, batch_idx: int) -> None:
        """One communication round."""
        assert batch.round_index == self.accounting.clock.rounds, "the loader and the method disagree on the round"
        if batch.lacks_uploads(self.aggregator.fewest):
            self.skip_round(batch)
            return
        arrived = len(batch.examples)
        batch = self.select_clients(batch._replace(weights=client_weights(batch.examples.counts, self.weighting)))
        if len(batch.examples) < min(arrived, self.aggregator.fewest):  # a secure sum of one upload would be that one
            self.skip_round(batch)
            return
        result = self.train_clients(batch)
        self.record(batch, result.volume, result.samples)
        with self.clients.forbid_server_reads(server_read_refusal(self.aggregator, type(self).__name__)):
            self.server_update(result.mean, batch)
        self.optimizer.zero_grad()
        if self.global_step == batch.round_index:
            self.optimizer.step()  # counts the round, where the method has taken no such step
        self.sparsity.prune_shared(select(self.shared_parameters, result.mean))
        self.advance_clock(batch)
        self.log_round(batch, result.loss)

    def train_clients(self, batch: Round) -> RoundResult:
        """What the participants of a round have trained and uploaded, added up; each stores what it keeps."""
        uploads = self.shared or self.uploads
        aggregator = self.aggregator if uploads else Aggregator()  # losses alone are for the log
        total = start_sum(self, aggregator, batch)
        methods = split_for_threads(self, batch.examples) if trains_as_usual(self) else [self]
        works = [partial(method.participate, batch) for method in methods]
        result = self.cohort.train(works, batch, self.clients, total, self.engine.dtype)
        if batch.arrivals is not None:
            self.versions.keep(batch.arrivals.update.held, batch.round_index, self.broadcast())
        return result if uploads else result._replace(volume=Volume())

    def participate(self, batch: Round, places: Tensor, cohort: Examples) -> Trained:
        """The part of some clients in a round: they receive, train, and upload. It has no side effects.

        Args:
            batch: The round.
            places: Their places among the participants, ``[cohort]``, on the CPU.
            cohort: Their training examples.
        """
        key = round_key(batch)
        received = self.received(cohort.ids)
        stale = batch.arrivals and batch.arrivals.of(places, batch.round_index)
        if stale:
            received = self.versions.received(stale.began, batch.round_index, received)
        trained, losses = own_update(self, cohort, received, key)
        changed = {name: rows for name, rows in trained.own.items() if rows is not received.own.get(name)}
        model, memory, bits = sent_one_by_one(self, batch, cohort.ids, received, select(changed, self.shared))
        others = {name: rows for name, rows in trained.own.items() if name.split(".")[0] in self.uploads}
        bits |= {name.removeprefix(BITS): rows for name, rows in trained.own.items() if name.startswith(BITS)}
        volume = Traffic(self.message, self.engine.trainable).measured({**model, **others, LOSS: losses}, bits)
        if stale:
            shares = stale.shares.to(losses.device, sum_type(self.engine.dtype))
            changes = self.engine.trainable if stale.changes else frozenset[str]()
            model = rebase_stale_uploads(model, received.tree, self.broadcast(), shares, changes)
        return Trained(select(trained.own, self.clients.names) | memory, {**model, **others}, losses, volume)

    @property
    def steps(self) -> list[Step]:
        """The steps of a model on its way to the server: pruning, and those of ``uplink``."""
        pruning = self.sparsity.pruning
        return [*([] if pruning is None else [pruning]), *self.uplink]

    @property
    def message(self) -> Message:
        """How uploads are written."""
        return reduce(lambda message, step: step.message(message), self.steps, Message())

    def skip_round(self, batch: Round) -> None:
        """Skip a round with too few uploads, mostly none: it takes time and traffic, and leaves the model as it was."""
        batch = batch.drop(torch.ones(len(batch.examples), dtype=torch.bool))
        self.optimizer.step()  # counts the round; no parameter has a gradient
        self.record(batch, Volume(), samples=0)
        self.advance_clock(batch)
        self.log_round(batch, None)

    def record(self, batch: Round, uploads: Volume, samples: int) -> None:
        """Record what a round has cost; the arguments are those of ``Accounting.record``."""
        up, down = (Traffic(Message(packed=self.packs), self.engine.trainable) for _ in range(2))
        if processes.rank() == 0:  # it has the rows of the first client
            self.count_traffic(batch, up, down)
        self.accounting.record(batch, up.volume, down.volume, uploads, samples)

    def log_round(self, batch: Round, loss: Tensor | None) -> None:
        """Log a round's simulated time and cohort size, its loss if it has one, and what was summed and sent so far."""
        self.log_clock()
        self.log_dict(self.accounting.scalars())
        if loss is not None:
            self.log("train/loss", loss, prog_bar=True)
        self.log("system/cohort", float(len(batch.examples)), prog_bar=True)
        if federated(self.trainer).participation.can_drop:
            self.log("system/dropped", float(len(batch.dropped)))
        if not self.schedule.is_constant:
            self.log("train/lr", self.local_sgd.lr * self.schedule.factor(self.accounting.clock.rounds - 1))

    def log_clock(self) -> None:
        """Log simulated seconds; the step of all logs is the number of rounds completed."""
        self.log("step", float(self.accounting.clock.rounds))
        self.log_dict(self.accounting.clock.scalars(), prog_bar=True)

    # What methods call

    def phase(
        self, part: Part, epochs: int | None = None, lr: float | None = None, penalty: Penalty | None = None
    ) -> Phase:
        """A local phase of the current round that trains one part of the network with the method's settings.

        Args:
            part: The part.
            epochs: Local epochs; those of ``local`` by default.
            lr: Learning rate; that of ``local`` by default.
            penalty: The method's own penalty; that of ``sparsity`` is added.
        """
        rate = self.rate(lr or self.local_sgd.lr)
        penalty = total(penalty, self.sparsity.penalty(self.shared_parameters))
        epochs = self.local.epochs if epochs is None else epochs
        return replace(self.local_sgd, trainable=self.parts[part], epochs=epochs, lr=rate, penalty=penalty)

    def rate(self, lr: float) -> float:
        """A local learning rate in the current round."""
        return lr * self.schedule.factor(self.accounting.clock.rounds)

    def received(self, ids: Tensor) -> Params:
        """Tensors that clients start a round with: those of ``broadcast``, and their own, ``[cohort, ...]``."""
        return Params(self.broadcast(), self.clients.gather(ids))

    @property
    def is_baseline(self) -> bool:
        """Whether reports compare other methods with it."""
        return False

    @property
    def shared_parameters(self) -> Tree:
        """The server's parameters of the shared part; empty if nothing is shared."""
        return {name: tensor.data for name, tensor in self.network.named_parameters() if name in self.shared}

    @property
    def packs(self) -> bool:
        """Whether models have many zeros, and so are packed to be sent and stored."""
        return self.sparsity.prune

    @property
    def advice(self) -> str:
        """What to try if training diverges."""
        return f"try a model.local.lr below {self.local_sgd.lr}"

    def check_finite(self, losses: Tensor) -> None:
        """Stop a diverged run.

        Args:
            losses: Any losses.

        Raises:
            PflError: If one of them is infinite or not a number.
        """
        if not torch.isfinite(losses).all():
            raise PflError(f"{type(self).__name__} diverged by round {self.accounting.clock.rounds}; {self.advice}")

    # Building for a data set

    def setup(self, stage: str) -> None:
        """Build the network for the data set, the scores of its splits, and the learning rates of all rounds."""
        data = federated(self.trainer)
        self.build_for(data)
        self.new_head = data.new_head
        self.evaluator.prepare(data.eval_splits, self.evaluated_models, data.eval_clients, self.task)
        if stage == "fit":
            self.aggregator.check_precision(self.trainer.precision)
            self.schedule.factor(max(self.trainer.max_steps, 0))

    def build_for(self, data: FederatedDataModule, resumes: bool = False) -> None:
        """Build the method for a data set, unless it is built, and check that the two are compatible.

        Args:
            data: The data set, after its ``setup``.
            resumes: Whether the weights will come from a checkpoint, so that no file of others need be there.

        Raises:
            PflError: If the network cannot take the inputs, or has no body for new clients, or the method evaluates
                personal models but some clients never train, or the pretrained weights cannot be read or do not fit.
        """
        if not self.built_for:  # do not build twice: pretrained vectors may take seconds to read
            shape = (data.input_shape, data.task, data.num_clients)
            weights = None if resumes or self.pretrained is None else read_weights(self.pretrained, self.adapter)
            test_only = data.training_clients < data.eval_clients
            self.build(*shape, data.seed, data.pretrained(), test_only, data.input_kind, weights)
        set_own_training(self, data)
        set_attackers(self, data)
        check_participation(data.participation, self, Method)
        check_never_training(data, self)
        check_networks(self, data)
        self.schedule.factor(0)
        check_task(self, data)

    def build(
        self,
        input_shape: tuple[int, ...],
        task: Task,
        num_clients: int,
        seed: int = 0,
        pretrained: Mapping[str, Tensor] = MappingProxyType({}),
        test_only: bool = False,
        input_kind: InputKind = "numbers",
        weights: Tree | None = None,
    ) -> None:
        """Make the network and the parts that need it, once.

        Args:
            input_shape: Shape of one input.
            task: What the targets of the data are; the method's own task replaces it.
            num_clients: Number of clients.
            seed: Seed of the initial network.
            pretrained: The data set's pretrained tensors of the network, by name.
            test_only: Whether some clients never train and so have no samples to fine-tune on.
            input_kind: The kind of the inputs.
            weights: Tensors of the file ``self.pretrained``, if there is one; see ``take_weights``.

        Raises:
            PflError: If the network does not fit the inputs, the method, the backend or the weights.
        """
        shape = tuple(map(int, input_shape))  # plain ints: range-checked types cannot be loaded with weights_only
        self.test_only = test_only
        self.task = (self.task if self.has_own_task else task).in_place_of(task)
        self.num_clients = int(num_clients)
        outputs = self.task.output_shape(shape)
        self._start = partial(
            start_networks,
            input_shape=shape,
            num_classes=self.task.outputs,
            pretrained=pretrained,
            input_kind=input_kind,
            output_shape=outputs,
        )
        check_classes(type(self).__name__, self.needs, self.task)
        networks = self._start(self.make_network, seed=seed, extend=self._extend)
        self.complete_networks(networks, seed)
        self._start = partial(self._start, pretrained={})  # vectors of all words are not to be kept
        loss = None if type(self).sample_losses is Method.sample_losses else Loss(self.sample_losses)
        self.architectures = build_architectures(self, networks, seed, weights, loss, 4 * prod(outputs))
        name = type(self).__name__
        statistics = self.parts["all"] - self.engine.trainable
        chooses = type(self).select_clients is not Method.select_clients
        uploaded = (self.shared, self.uploads, self.shared & statistics)
        check_aggregator(self.aggregator, name, *uploaded, self.weighting, chooses, self.uploads_models)
        check_uplink(self.uplink, name, self.shared, self.uploads_models, self.aggregator)
        tensors = movable(self.network)
        self.server = ServerState(self.server_state(tensors))
        self.memory = ServerState(self.aggregator.initial_memory(select(tensors, self.shared)))
        sizes = [architecture.sizes for architecture in self.architectures]
        self.cohort = Cohort(self.chunk_size, sizes, self.progress, self.local_sgd.visited, groups_of(self))
        self.built_for = {
            "input_shape": shape,
            "task": to_settings(task),
            "outputs": task.outputs,
            "num_clients": self.num_clients,
            "test_only": test_only,
            "input_kind": input_kind,
        }

    def _extend(self, network: Network) -> None:
        """Add the adapters to a new network, and what the method adds."""
        if self.adapter is not None:
            self.adapter.add_to(network, self.head)
        self.extend_network(network)

    # The server's optimizer, the only one that Lightning sees

    def configure_optimizers(self) -> Optimizer:
        """Make the server's optimizer; by default a step sets the mean."""
        return SGD(self.network.parameters(), lr=1.0)

    @property
    def optimizer(self) -> LightningOptimizer:
        """The server's optimizer."""
        return cast(LightningOptimizer, self.optimizers())

    def on_train_start(self) -> None:
        """Apply this run's learning rates: restoring a checkpoint has overwritten them with the old ones."""
        current = self.configure_optimizers().param_groups
        for group, current_group in zip(self.optimizer.param_groups, current, strict=True):
            group["lr"] = current_group["lr"]

    # Evaluation

    def evaluate(self, train: Examples, key: Key) -> Iterator[tuple[str, Params]]:
        """Name and tensors of each of the ``evaluated_models``, in their order; arguments as for ``eval_model``."""
        if self.new_head:
            yield from self._evaluate_new(train, key, self.new_head)
            return
        received = self.received(train.ids)
        for model in self.eval_models:
            yield model, own_eval_model(self, model, train, received, key)

    def engine_of(self, model: str, params: Params) -> Engine:
        """What predicts with one of the ``evaluated_models``: the engine with its network; see ``eval_network``."""
        return self.engine.on(self.newcomer_network if self.new_head else self.eval_network(model, params))

    @property
    def evaluated_models(self) -> tuple[str, ...]:
        """The models of this evaluation: ``eval_models``, or those of new clients that train new heads."""
        if not self.new_head:
            return self.eval_models
        return ("finetuned", *(model for model in self.eval_models if model == "global"))

    def client(
        self, client: int, model: str | None = None, data: FederatedDataModule | None = None, merged: bool = True
    ) -> nn.Module:
        """One client's model as an ordinary module: a copy, in evaluation mode, with adapters merged into its layers.

        Args:
            client: The client's id.
            model: One of ``eval_models``. Default: the first that needs no training for its evaluation, such as
                ``stored``.
            data: The data set of the run; for models that are trained on the client's samples, such as ``finetuned``.
            merged: Whether adapters are merged; if not, there must be some.

        Raises:
            PflError: If there is no such client or model; a ``NeedsSamplesError`` if ``data`` is missing.
        """
        return client_model(self, client, model, data, merged)

    @property
    def heads(self) -> Heads:
        """The head that each client keeps, as an ordinary module: ``method.heads[3](features)``."""
        return Heads(self)

    def on_validation_epoch_start(self) -> None:
        """Stop a diverged run with a PflError, before it is evaluated and saved."""
        if (loss := self.trainer.callback_metrics.get("train/loss")) is not None:
            self.check_finite(loss)
        self.on_test_epoch_start()

    def on_test_epoch_start(self) -> None:
        """Reset metrics and progress for an evaluation of the clients of this process."""
        data = federated(self.trainer)
        self.evaluator.begin()
        self.progress.begin("evaluating", data.tables["train"].counts[data.local_order])

    def validation_step(self, batch: EvalBatch, batch_idx: int) -> None:
        """Evaluate some clients with each of their models, on each split."""
        key = (batch.seed, "refit", self.accounting.clock.rounds)
        input_bytes = 4 * prod(self.built_for["input_shape"])
        self.evaluator.step(batch, lambda train: self.evaluate(train, key), self.engine_of, self.cohort, input_bytes)

    def on_validation_epoch_end(self) -> None:
        """Log summaries of the scores over the clients, and reset them."""
        self.progress.end()
        self.log_clock()
        if self.accounting.clock.rounds and self.trainer.state.fn == "fit":
            self.log_dict(self.accounting.scalars())
        self.log_dict(self.accounting.budget(federated(self.trainer)))
        self.log_dict(self.evaluator.results(self.evaluated_models[0]))

    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end

    # Clients that are new to a finished run

    def on_test_start(self) -> None:
        """Set the models that new clients begin with."""
        data = federated(self.trainer)
        seed = seed_of(data.seed, "new clients")
        if self.new_head:
            self._newcomer = {**self.common_body(), **self._new_head(seed)}
        elif data.new_clients:
            start = self.initial_state(movable(self.network), data.new_clients, seed)
            self.clients = ClientStates(start).to(self.device)

    def _new_head(self, seed: int) -> Tree:
        """The head of a new network, ``[...]``."""
        network = cast(Network, self._start(self.make_network, seed=seed)[0]).to(self.device, self.engine.dtype)
        return select(network.state_dict(), network.parts(self.head)["head"])

    def _evaluate_new(self, train: Examples, key: Key, head: NewHead) -> Iterator[tuple[str, Params]]:
        """The models of new clients, in the order of ``evaluated_models``."""
        # a rule after each step is about what the run's clients hold, such as masks
        lr = self.head_lr or self.local_sgd.lr
        names = self.newcomer_network.parts(self.head)["head"]
        phase = replace(self.phase("head", head.epochs), trainable=names, lr=lr, steps=head.steps, after_step=None)
        engine = self.engine_of("finetuned", Params({}, {}))
        yield "finetuned", engine.train(train, Params(self._newcomer, {}), phase, key)[0]
        if "global" in self.evaluated_models:
            yield "global", Params({**movable(self.network), **select(self._newcomer, self.kept)}, {})

    # Checkpoints

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what builds the method again, what it has cost so far, and what clients keep; pack sparse models."""
        save_method(self, checkpoint)

    def on_load_checkpoint(self, checkpoint: Content) -> None:
        """Restore everything but the optimizer; build the method, unless it is built.

        Raises:
            PflError: If an entry is missing or wrong, or of another method, network or data set.
        """
        restore_method(self, checkpoint)


def method_of(module: pl.LightningModule) -> Method:
    """Narrow the module that Lightning passes to a callback to ``Method``.

    Raises:
        PflError: If it is another kind of module.
    """
    if not isinstance(module, Method):
        raise PflError(f"model: {type(module).__name__} is not possible with these callbacks; allowed: a Method")
    return module


def trains_as_usual(method: Method) -> bool:
    """Whether clients train by the rule of ``Method``; others may change what threads share, such as modules."""
    hooks = (method.participate, Method.participate), (method.local_update, Method.local_update)
    return all(getattr(hook, "__func__", None) is usual for hook, usual in hooks)
