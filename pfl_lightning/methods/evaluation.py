from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import Any, ClassVar, Protocol, cast

import torch
from torch import Tensor, nn

from pfl_lightning.client import Collected, Cost, Examples, Phase
from pfl_lightning.data import EvalBatch, FederatedDataModule, federated
from pfl_lightning.errors import PflError
from pfl_lightning.federation.client_models import NeedsSamplesError, examples_of, module_of
from pfl_lightning.federation.client_states import ClientStates
from pfl_lightning.methods.training import Trained
from pfl_lightning.metrics import ClientMetric, ClientScore
from pfl_lightning.models import NetworkFactory, Part, start_network
from pfl_lightning.quantity import HEADLINED, headline
from pfl_lightning.seeding import Key, seed_of
from pfl_lightning.tree import Params, Tree, select


class Measure(Protocol):
    """A metric of the clients' models themselves, such as their density."""

    def measure(self, params: Params) -> Tensor:
        """A pure function of some clients' models, ``[cohort, ...]``."""

    def update(self, ids: Tensor, measured: Tensor) -> None:
        """Take what was measured for these clients."""


class Evaluated(Trained):
    """The evaluation of every method: each client is evaluated with each of its models, on each split.

    These are, unless a method says otherwise, the shared part plus what the client ``keeps`` (``stored``, or ``global``
    if it keeps nothing), and the same after the part that the method ``finetunes`` was trained further on the client's
    own samples (``finetuned``); or the client's second, ``personal`` model and the ``global`` one.

    Clients that are new to a finished run are tested in the same way with every method: each trains a new head on the
    ``common_body``, which is frozen, in full epochs with the ``lr``, ``momentum`` and other settings of the first round
    (``finetuned``). Beside it stands the ``global`` model of the methods that have one. With ``data.new_head_epochs`` 0
    they are evaluated by the method's own models instead, each as a client that has not taken part yet.

    Paper: Xiong et al., DePRL, AAAI 2024, arXiv:2312.10815, Tables 2 and 8.

    Attributes:
        scores: The clients' scores, by ``split/model``.
        measures: Metrics of the models themselves, by ``model/metric``; callbacks add theirs before an evaluation, and
            take them away after it.
        others: Other metrics of the clients' predictions, by ``split/model/metric``; callbacks add theirs before an
            evaluation, and they are logged as the scores are.
    """

    keeps: ClassVar[Part] = "nothing"
    finetunes: ClassVar[Part] = "head"
    personal: ClassVar[bool] = False
    eval_epochs: int
    eval_momentum: float
    make_network: NetworkFactory

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.measures = nn.ModuleDict()
        self._newcomer: Tree = {}
        self._own_sizes: list[int] = []  # bytes of each tensor that differs between the clients that are evaluated

    @property
    def eval_models(self) -> tuple[str, ...]:
        """Names of the models that clients are evaluated with; the first one is used for model selection."""
        if self.personal:
            return ("personal", "global")
        finetuned = ("finetuned",) if self.eval_epochs and self.finetunes != "nothing" and not self.test_only else ()
        return ("global", *finetuned) if self.keeps == "nothing" else (*finetuned, "stored")

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """One of the ``eval_models``, ``[cohort, ...]``.

        Args:
            model: Its name.
            train: The clients' training examples. Take from them only what the model needs: those that need none are
                also there without a data set.
            received: Tensors that the clients would start a round with.
            key: Key for the randomness of fine-tuning.
        """
        if model == "finetuned":
            return self.engine.train(train, received, self.finetuning, key)[0]
        return received.under("personal") if model == "personal" else received

    def evaluate(self, train: Examples, key: Key) -> Iterator[tuple[str, Params]]:
        """Name and tensors of each of the ``eval_models``, in their order; arguments as for ``eval_model``."""
        received = self.received(train.ids)
        for model in self.eval_models:
            yield model, self.eval_model(model, train, received, key)

    def client(self, client: int, model: str | None = None, data: FederatedDataModule | None = None) -> nn.Module:
        """One client's model as an ordinary module: a copy, in evaluation mode.

        Args:
            client: The client's id.
            model: One of ``eval_models``. Default: the first that needs no training for its evaluation, such as
                ``stored``.
            data: The data set of the run; for models that are trained on the client's samples, such as ``finetuned``.

        Raises:
            PflError: If there is no such client or model; a ``NeedsSamplesError`` if ``data`` is missing.
        """
        if not hasattr(self, "clients"):
            raise PflError(f"client: {type(self).__name__} has no clients yet; allowed: after training, or load_method")
        if model not in (None, *self.eval_models):
            raise PflError(f"model: {model} is not possible; allowed: {', '.join(self.eval_models)}")
        train = examples_of(client, data, self.built_for["num_clients"], self.device)
        key: Key = () if data is None else (data.seed, "refit", self.clock.rounds)
        received = self.received(train.ids)
        for name in self.eval_models if model is None else (model,):
            with suppress(NeedsSamplesError):
                return module_of(self.network, self.eval_model(name, train, received, key))
        raise NeedsSamplesError(f"model: {model or name} is trained on the client's samples; allowed: with data")

    @property
    def finetuning(self) -> Phase:
        """The phase that fine-tunes a part before a client is evaluated."""
        return replace(
            self.phase(self.finetunes, self.eval_epochs), lr=self.lr, momentum=self.eval_momentum, steps=None
        )

    # Clients that are new to a finished run

    def on_test_start(self) -> None:
        """Give new clients what they begin with."""
        data = federated(self.trainer)
        seed = seed_of(data.seed, "new clients")
        if self.new_head_epochs:
            self._newcomer = {**self.common_body(), **self._new_head(seed)}
        elif data.new_clients:
            self.clients = ClientStates(self.initial_state(self.network.state_dict(), data.new_clients, seed))

    def common_body(self) -> Tree:
        """The body on which new clients train their heads.

        It is the network's, except for what clients have of their own, in ``personal`` models or otherwise: this is the
        mean over all clients.
        """
        names = {f"personal.{name}" if self.personal else name: name for name in self.parts["body"]}
        own = self.clients.mean(names.keys() & set(self.clients.names))
        server = select(self.network.state_dict(), self.parts["body"])
        return {**server, **{names[name]: mean for name, mean in own.items()}}

    def _new_head(self, seed: int) -> Tree:
        """The head of a new network, ``[...]``."""
        shape = self.built_for["input_shape"], self.built_for["num_classes"]
        new = start_network(self.make_network, *shape, seed, {}, self.network.takes)
        head, old = select(new.state_dict(), self.parts["head"]), self.network.state_dict()
        return {name: tensor.to(old[name]) for name, tensor in head.items()}

    def _evaluate_new(self, train: Examples, key: Key) -> Iterator[tuple[str, Params]]:
        """The models of new clients, in the order of ``evaluated_models``."""
        # a rule after each step is about what the run's clients hold, such as masks
        phase = replace(self.phase("head", self.new_head_epochs), lr=self.lr, steps=None, after_step=None)
        yield "finetuned", self.engine.train(train, Params(self._newcomer, {}), phase, key)[0]
        if "global" in self.evaluated_models:
            yield "global", Params(self.network.state_dict(), {})

    # One evaluation

    def evaluation_cost(self) -> Cost:
        """What an evaluation costs all clients, in the order in which they are evaluated."""
        data = federated(self.trainer)
        if not len(data.own_order):
            return Cost(*3 * [data.own_order])
        if "evaluating" not in self._rehearsals:
            one = data.make_eval_batch(data.own_order[:1]).train.to(self.device)
            models = self._evaluate_new if self.new_head_epochs else self.evaluate
            self.rehearse("evaluating", lambda: self._note_sizes(models(one, ("rehearsal",))))
        counts = {split: table.counts[data.own_order] for split, table in data.tables.items()}
        cost = self._rehearsals["evaluating"].cost(counts["train"])
        scored = torch.stack([counts[split] for split in data.eval_splits]).sum(0)
        return cost._replace(visits=cost.visits + len(self.evaluated_models) * scored)

    def _note_sizes(self, models: Iterator[tuple[str, Params]]) -> None:
        self._own_sizes = [stack.nbytes for _, params in models for stack in params.own.values()]

    def _begin_evaluation(self) -> None:
        self.progress.begin("evaluating", self.evaluation_cost().visits)

    @property
    def metrics(self) -> dict[str, ClientScore]:
        """The clients' scores in the current evaluation, by ``split/model``."""
        return cast(dict[str, ClientScore], dict(self.scores.items()))

    @property
    def advice(self) -> str:
        """What to try if training diverges."""
        return f"try a model.lr below {self.lr}"

    def check_finite(self, losses: Tensor) -> None:
        """Stop a diverged run.

        Args:
            losses: Any losses.

        Raises:
            PflError: If one of them is infinite or not a number.
        """
        if not torch.isfinite(losses).all():
            raise PflError(f"{type(self).__name__} diverged by round {self.clock.rounds}; {self.advice}")

    def on_validation_epoch_start(self) -> None:
        """Stop a diverged run with a PflError, before it is evaluated and saved."""
        if (loss := self.trainer.callback_metrics.get("train/loss")) is not None:
            self.check_finite(loss)
        self._begin_evaluation()

    def on_test_epoch_start(self) -> None:
        """Count the evaluation's progress from here."""
        self._begin_evaluation()

    def validation_step(self, batch: EvalBatch, batch_idx: int) -> None:
        """Evaluate some clients with each of their models, on each split."""
        key = (batch.seed, "refit", self.clock.rounds)
        evaluate = self._evaluate_new if self.new_head_epochs else self.evaluate

        def work(start: int, train: Examples) -> list[tuple[Any, tuple[Tensor, ...]]]:
            evaluated = {split: examples.rows(start, start + len(train)) for split, examples in batch.evaluated.items()}
            found: list[tuple[Any, tuple[Tensor, ...]]] = []
            for model, params in evaluate(train, key):
                for split, examples in evaluated.items():
                    found += self._scored(f"{split}/{model}", examples, params)
                watching = [cast(Any, metric) for name, metric in self.measures.items() if name.startswith(f"{model}/")]
                found += [(metric, (train.ids, metric.measure(params))) for metric in watching]
            return found

        inputs = 4 * prod(self.built_for["input_shape"]) * batch.train.longest
        for found in self.chunks.map(work, batch.train, [*self._own_sizes, inputs]):
            for metric, values in found:
                metric.update(*values)

    def _scored(self, name: str, examples: Examples, params: Params) -> list[tuple[Any, tuple[Tensor, ...]]]:
        """What each metric of a split and model takes of some clients."""
        others = [cast(ClientMetric, metric) for key, metric in self.others.items() if key.rpartition("/")[0] == name]
        ids, counts, shown = examples.ids, examples.device_counts, [Collected(len(examples))] if others else []
        score = (ids, counts, *self.engine.score(examples, params, *shown))
        values = [(metric, (ids, counts, shown[0].map(metric.measure).to(ids.device))) for metric in others]
        return [(self.scores[name], score), *values]

    def on_validation_epoch_end(self) -> None:
        """Log summaries of the scores over the clients, first the headlines, then reset them."""
        self.progress.end()
        self.log_clock()
        self.log_budget()
        for split in HEADLINED:
            if (first := self.metrics.get(f"{split}/{self.evaluated_models[0]}")) is not None:
                self.log(headline(split, first.quantity), first.compute()["mean"].float())
        scores = {f"{name}/{metric.quantity.name}": metric for name, metric in self.metrics.items()}
        for name, metric in {**scores, **cast(dict[str, ClientMetric], dict(self.others.items()))}.items():
            self.log_dict({f"{name}/{key}": value.float() for key, value in metric.compute().items()})
            metric.reset()

    def test_step(self, batch: EvalBatch, batch_idx: int) -> None:
        """Same as in validation."""
        self.validation_step(batch, batch_idx)

    def on_test_epoch_end(self) -> None:
        """Same as in validation."""
        self.on_validation_epoch_end()
