"""The local work of clients: ``train`` runs declared phases, ``each`` maps any function over the clients."""

from collections.abc import Callable, Collection, Iterator
from copy import copy, deepcopy
from functools import partial
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pfl_lightning.client.backends import TILE_BYTES, Backend, Batched, ClientFunction, LinearStack, Sequential
from pfl_lightning.client.epochs import Epochs, divisors
from pfl_lightning.client.examples import Examples
from pfl_lightning.client.layers import (
    SLOW_WHEN_BATCHED_ON_CPU,
    channels_last,
    frozen_layers,
    has_layers,
    holds,
    is_random,
    layers_before,
    layers_without_vmap,
    needs_torchs_stream,
    part,
    partly_trained_layers,
    set_mode,
    shared_layers,
    streams,
    with_streams,
)
from pfl_lightning.client.losses import Loss, loss_of
from pfl_lightning.client.phase import Phase
from pfl_lightning.client.predictions import Predictions, Watch
from pfl_lightning.client.steps import Steps, loss_gradient
from pfl_lightning.errors import PflError
from pfl_lightning.processes import KEPT_BYTES
from pfl_lightning.seeding import Key, seed_of
from pfl_lightning.tasks import AMOUNT, Classification, Task
from pfl_lightning.threads import map_in_threads, with_lock
from pfl_lightning.tree import BATCH_NORM, Params, Tree, movable, select, sum_type

BackendName = Literal["auto", "sequential", "batched"]
REQUESTED = "requested by model.backend"
SAMPLES_AT_ONCE = 1024  # batch size for frozen layers and evaluation, unless inputs or outputs are large


def no_report(visits: float, gradients: int = 0) -> None:
    """A no-op progress callback."""


class Engine:
    """Runs the local work of a cohort: tensors in, tensors out. Its only state is the record of its choices.

    Args:
        network: Network of all clients. Of its own tensors the frozen ones are read, see ``movable``; none is written.
        backend: ``sequential``, ``batched``, or ``auto``: a fixed rule, because a choice by timing could make two runs
            of the same command differ. It picks the batched backend, except for training BatchNorm or other
            random layers than ``nn.Dropout``, for what torch's ``vmap`` cannot run, and on a CPU except for
            convolutions and fused recurrent layers, where parameters differ per client.
        chunk_size: Clients that the batched backend trains at once. Default: as many as suit the device.
        report: Progress callback: how many more samples were visited (in a mini-batch, by frozen layers, or for
            scoring), and how many gradients of samples were taken, counting each of a step.
        task: What the targets are; classes by default.
        loss: The loss; that of the task by default.

    Attributes:
        head: Names of the tensors of the head, whose inputs are the features; empty if nobody asks for them.
        choices: Which backend ran, and why; the keys are the layers that were trained.

    Raises:
        PflError: If the backend cannot run this network.
    """

    def __init__(
        self,
        network: nn.Sequential,
        backend: BackendName = "auto",
        chunk_size: int | None = None,
        report: Callable[..., None] = no_report,
        task: Task | None = None,
        loss: Loss | None = None,
    ) -> None:
        self.network = network
        self.requested = backend
        self.chunk_size = chunk_size
        self.report = report
        self.task = task or Classification()
        self.loss = loss or loss_of(self.task)
        self.trainable = frozenset(name for name, parameter in network.named_parameters() if parameter.requires_grad)
        self.head: frozenset[str] = frozenset()
        self.choices: dict[str, str] = {}
        unfit = ["BatchNorm"] * has_layers(network, BATCH_NORM, movable(network)) + layers_without_vmap(network)
        if backend == "batched" and unfit:
            raise PflError(f"model.backend: batched is not possible with {', '.join(unfit)}; allowed: auto, sequential")

    @property
    def dtype(self) -> torch.dtype:
        """Type of the network's numbers."""
        return next(self.network.parameters()).dtype

    def on(self, network: nn.Sequential) -> "Engine":
        """The same engine for another network, to evaluate it."""
        engine = copy(self)
        engine.network = network
        return engine

    def backend(self, network: nn.Sequential, stacks: Tree, training: bool = True) -> Backend:
        """The backend for a part of the network; ``stacks`` holds the tensors that differ between clients."""
        if self.reason_for_sequential(network, stacks, training):
            return Sequential()
        is_linear = LinearStack.suits(network) and not self.task.every_step  # which takes vectors, not sequences
        return LinearStack(self.chunk_size) if is_linear else Batched(self.chunk_size)

    def reason_for_sequential(self, network: nn.Sequential, stacks: Tree, training: bool = True) -> str:
        """Why a part of the network runs one client at a time; empty if it runs batched."""
        if self.requested != "auto":
            return REQUESTED if self.requested == "sequential" else ""
        on_cpu = all(stack.device.type == "cpu" for stack in stacks.values())
        if training and has_layers(network, BATCH_NORM, stacks):
            return "BatchNorm would count the padding of ragged clients"
        if training and needs_torchs_stream(network):
            return "random layers other than nn.Dropout would depend on the chunk"
        if without_vmap := layers_without_vmap(network):
            return f"torch's vmap cannot run {', '.join(without_vmap)}"
        if on_cpu and has_layers(network, SLOW_WHEN_BATCHED_ON_CPU, stacks):
            return "convolutions and fused recurrent layers are faster one client at a time on a CPU"
        return ""

    def each(self, function: ClientFunction, params: Params, *arguments: Tensor) -> Tree:
        """Map a pure function of one client's tensors over the cohort.

        Args:
            function: Takes a tree of all tensors of a client, and the client's row of each argument; returns a tree.
            params: Tensors of the cohort.
            arguments: One row per client, ``[cohort, ...]``.

        Returns:
            The results, ``[cohort, ...]``.
        """
        return self.backend(self.network, params.own).each(function, params, *arguments)

    @torch.inference_mode(False)  # evaluation fine-tunes heads
    @torch.enable_grad()
    def train(self, examples: Examples, params: Params, phase: Phase, key: Key) -> tuple[Params, Tensor]:
        """Run one local phase for every client of the cohort.

        Args:
            examples: Training examples of the cohort, largest client first; every client must have some.
            params: All tensors of the network, and any extra tensors such as anchors; not changed.
            phase: The phase to run.
            key: Key for batch orders and augmentation, such as ``(seed, "train", round, part)``.

        Returns:
            The tensors after the phase, with all trained ones under ``own``, and each client's mean training loss over
            the last epoch, ``[cohort]``.
        """
        assert examples.is_largest_first, "cohorts must be sorted with largest_first before training"
        set_mode(self.network, phase.trainable)
        frozen = frozen_layers(self.network, phase.trainable)
        if phase.feature_loss is not None:
            frozen = min(frozen, self.body_layers())
        stacks = params.room(phase.trainable, len(examples))
        network = part(self.network, frozen)
        backend = self.backend(network, stacks)
        size = backend.tile_size(list(stacks.values()))
        on_cpu = examples.ids.device.type == "cpu"
        tiles = [*examples.split(size, even=on_cpu)]
        threads = self._threads(backend, network, stacks, phase) if on_cpu else 1

        def trained(engine: Engine, place: tuple[int, Examples]) -> tuple[Tree, Tensor]:
            start, tile = place
            rows = {name: stack[start : start + len(tile)] for name, stack in stacks.items()}
            if threads > 1:  # what they change must not be one tensor
                rows = {name: torch.empty_like(row) for name, row in rows.items()}
            received = params.rows(start, start + len(tile))
            return rows, engine._train_tile(backend, frozen, tile, received, rows, phase, key)

        if threads > 1:
            results = map_in_threads(trained, tiles, self._of_thread, threads)
        else:
            results = map(partial(trained, self._with_streams() if is_random(self.network) else self), tiles)
        losses = []
        for (start, _), (rows, tile_losses) in zip(tiles, results, strict=True):
            if threads > 1:
                for name, row in rows.items():
                    stacks[name][start] = row[0]
            losses.append(tile_losses)
        return params.with_own(stacks), torch.cat(losses)

    def _threads(self, backend: Backend, network: nn.Sequential, stacks: Tree, phase: Phase) -> int:
        """In how many threads clients train on a CPU: as many as torch may use, where they train one at a time.

        With one thread for each client torch is faster than with several for one, unless what they train leaves the
        cache. But all threads share torch's stream of random numbers, a loss of features may use modules that are not
        the engine's, and mixed precision is of one thread.
        """
        fits = sum(stack[0].nbytes for stack in stacks.values()) <= TILE_BYTES
        shares = needs_torchs_stream(network) or phase.feature_loss is not None or torch.is_autocast_enabled("cpu")
        in_turn = self.requested == "auto" and isinstance(backend, Sequential)
        return torch.get_num_threads() if in_turn and fits and not shares else 1

    def uses_threads(self, phase: Phase) -> bool:
        """Whether clients train in threads on a CPU; see ``_threads``."""
        tensors = movable(self.network)
        stacks = {name: tensors[name][None] for name in phase.trainable}
        network = part(self.network, frozen_layers(self.network, phase.trainable))
        return self._threads(self.backend(network, stacks), network, stacks, phase) > 1

    def _of_thread(self) -> "Engine":
        """The same engine for another thread."""
        engine = self._with_streams()
        engine.report = with_lock(self.report)
        return engine

    def _with_streams(self) -> "Engine":
        """The same engine with copies of the modules, whose dropout draws from streams; the tensors are the same."""
        tensors = {id(tensor): tensor for tensor in (*self.network.parameters(), *self.network.buffers())}
        return self.on(with_streams(deepcopy(self.network, tensors)))

    def _train_tile(
        self, backend: Backend, frozen: int, examples: Examples, received: Params, rows: Tree, phase: Phase, key: Key
    ) -> Tensor:
        """Train some clients and write the results into ``rows``; the first ``frozen`` layers do not change."""
        leading = part(self.network, 0, frozen)
        network = part(self.network, frozen)

        def computed(inputs: Tensor, samples: int) -> tuple[Tensor, Tree]:
            features = {name: self._features(received.under(name), inputs) for name in phase.frozen_models}
            set_mode(self.network, phase.trainable)
            outputs = self._outputs(leading, received, inputs)
            self.report(samples * (len(features) + bool(frozen)))
            return outputs, features

        like = next(self.network.parameters())
        epochs = Epochs(examples, phase, key, computed, like, received.own, self._amounts)
        body = 0 if phase.feature_loss is None else self.body_layers() - frozen
        start = received.without({*leading.state_dict(), *phase.sample_rows, phase.sample_weights or ""})
        start = start.with_own(streams(network, (*key, "dropout"), examples.ids))
        steps = backend.steps(network, start, rows, phase, self.loss, epochs.fixed, body)
        self._note(network, backend, rows, steps)
        draws = needs_torchs_stream(network)
        batches = epochs.batches
        for number, epoch in enumerate(epochs):
            if draws:
                torch.manual_seed(seed_of(*key, "dropout", number, int(examples.host_ids[0])))
            steps.enter(epoch)
            losses = torch.zeros_like(epoch.counts, dtype=sum_type(epoch.present.dtype))
            for clients, batch, samples in batches:
                losses[:clients] += steps.step(clients, batch)
                self.report(samples, samples * steps.gradients)
        steps.finish()
        return losses / epoch.total

    def _note(self, network: nn.Sequential, backend: Backend, stacks: Tree, steps: Steps) -> None:
        """Record how a phase runs and why."""
        layers = ", ".join(name for name, layer in network.named_children() if holds(name, layer, stacks))
        layers += "".join(
            f" (the rest of {name} is computed again in every step)" for name in partly_trained_layers(network, stacks)
        )
        layers += " with a penalty" if steps.phase.penalty is not None else ""
        usual = REQUESTED if self.requested == "batched" else "no layer needs or prefers one client at a time"
        reason = self.reason_for_sequential(network, stacks) or usual
        self.choices[layers] = f"{backend.name} {steps.kind} ({reason})"

    def gradient(self, examples: Examples, params: Params, names: Collection[str]) -> Tree:
        """Gradient of each client's mean loss over all of its examples.

        The network is in evaluation mode: no dropout, BatchNorm with its running statistics.

        Args:
            examples: Examples of the cohort; every client must have some.
            params: All tensors of the network; not changed.
            names: Parameters to differentiate with respect to.

        Returns:
            Gradients, ``[cohort, ...]`` by name.
        """
        self.network.eval()
        frozen = frozen_layers(self.network, names)
        leading = part(self.network, 0, frozen)
        network = part(self.network, frozen)
        gradients = params.room(names, len(examples))
        backend = self.backend(network, gradients, training=False)
        for start, tile in examples.split(backend.tile_size(list(gradients.values()))):
            received = params.rows(start, start + len(tile))
            owned = received.select(network.state_dict()).owned(names, len(tile))
            sums = {name: stack[start : start + len(tile)].zero_() for name, stack in gradients.items()}
            own_amounts = self._amounts(tile.targets(tile.positions))
            total = tile.device_counts if own_amounts is None else divisors((own_amounts * tile.present).sum(1))
            for rows, window in self._windows(tile):
                moving = owned.take(rows)
                inputs = self._outputs(leading, received.take(rows), window.gather(window.positions))
                targets = window.targets(window.positions)
                losses_of = partial(self._losses, backend, network, moving, inputs, targets)
                weights = window.present / total[rows][:, None]
                _, grads = loss_gradient(losses_of, select(moving.own, names), weights)
                for name, grad in grads.items():
                    sums[name][rows] += grad
                samples = int(window.counts.sum())
                self.report(samples, samples)
        return gradients

    def _amounts(self, targets: Tensor) -> Tensor | None:
        """How much samples with these targets are, ``[clients, samples]``; None for 1 each."""
        amounts = self.task.amounts(targets.flatten(0, 1))
        return None if amounts is None else amounts.unflatten(0, targets.shape[:2])

    def _losses(
        self, backend: Backend, network: nn.Module, params: Params, inputs: Tensor, targets: Tensor, leaves: Tree
    ) -> Tensor:
        """Loss of each sample, ``[clients, samples]``, where some of the clients' own tensors are ``leaves``."""
        return self.loss(backend.forward(network, params.with_own(leaves), inputs), targets)

    def _windows(self, examples: Examples) -> Iterator[tuple[Tensor | slice, Examples]]:
        """The examples in batches that go through the network at once; see ``Examples.windows``."""
        shape = examples.samples.inputs.shape[1:]
        return examples.windows(samples_at_once(shape, self.task.output_shape(shape)))

    @torch.no_grad()
    def _outputs(self, network: nn.Sequential, params: Params, inputs: Tensor) -> Tensor:
        """Outputs for all inputs in large batches; layers that all clients share run on the inputs of all at once.

        Args:
            network: Some layers, or none.
            params: Their tensors, and others.
            inputs: Inputs of these layers, ``[clients, samples, ...]``.
        """
        params = params.select(network.state_dict())
        if not len(network):
            return inputs
        at_once = samples_at_once(inputs.shape[2:])
        if not params.own:
            batches = channels_last(inputs.flatten(0, 1), 1).split(at_once)
            outputs = torch.cat([functional_call(network, params.shared, batch) for batch in batches])
            return torch.unflatten(outputs, 0, inputs.shape[:2])
        if shared := shared_layers(network, params.own):
            hidden = self._outputs(part(network, 0, shared), params, inputs)
            return self._outputs(part(network, shared), params, hidden)
        backend = self.backend(network, params.own, self.network.training)
        results = []
        size = max(1, at_once // max(inputs.shape[1], 1))
        for start in range(0, len(inputs), size):  # all samples of few clients, whose weights are then read once
            tensors = params.rows(start, start + size)
            batches = inputs[start : start + size].split(at_once, dim=1)
            results.append(torch.cat([backend.forward(network, tensors, batch) for batch in batches], dim=1))
        return torch.cat(results)

    def _features(self, params: Params, inputs: Tensor) -> Tensor:
        """Inputs of the head, in evaluation mode; arguments as for ``_outputs``."""
        self.network.eval()
        return self._outputs(part(self.network, 0, self.body_layers()), params, inputs)

    def body_layers(self) -> int:
        """Number of layers before the head; their outputs are the features. Methods call it to be refused at once.

        Raises:
            PflError: If there is no body, or the head is not made of the last layers.
        """
        return layers_before(self.network, self.head)

    def features(self, examples: Examples, params: Params) -> Iterator[Predictions]:
        """The inputs of the head of each client's model for its examples; see ``predictions``."""
        return self.predictions(examples, params, self.body_layers())

    @torch.no_grad()
    def predictions(self, examples: Examples, params: Params, layers: int | None = None) -> Iterator[Predictions]:
        """Outputs of each client's model for its examples, some examples at a time.

        Args:
            examples: Examples of the cohort; a client may have none.
            params: All tensors of the network.
            layers: Of how many layers of it, if not of all.
        """
        self.network.eval()
        network = part(self.network, 0, layers)
        for rows, window in self._windows(examples):
            outputs = self._outputs(network, params.take(rows), window.gather(window.positions))
            self.report(int(window.counts.sum()))
            yield Predictions(rows, outputs, window.targets(window.positions), window.present)

    def sums(self, examples: Examples, params: Params, *watchers: Watch) -> Tree:
        """Evaluate each client's model on its examples.

        Args:
            examples: Examples of the cohort; a client may have none.
            params: All tensors of the network.
            watchers: Further functions to call with the predictions.

        Returns:
            Sums over each client's examples, by name, ``[cohort, ...]``: of their ``loss``, of the task's statistics,
            and of the ``amount`` if it has amounts.
        """
        totals: Tree = {}
        for predictions in self.predictions(examples, params):
            for name, values in self.statistics(predictions).items():
                total = values.sum(1)
                if name not in totals:
                    totals[name] = total.new_zeros(len(examples), *total.shape[1:])
                totals[name][predictions.rows] += total
            for watch in watchers:
                watch(predictions)
        return totals

    def statistics(self, predictions: Predictions) -> Tree:
        """What predictions add to the sums, by name, ``[clients, samples, ...]``; 0 where there is no sample."""
        _, outputs, targets, present = predictions
        statistics = self.task.statistics(outputs.flatten(0, 1), targets.flatten(0, 1))
        if (amounts := self.task.amounts(targets.flatten(0, 1))) is not None:
            statistics = {**statistics, AMOUNT: amounts}
        found = {}
        for name, values in {"loss": self.loss(outputs, targets).flatten(), **statistics}.items():
            kept = values.unflatten(0, present.shape) * present.view(*present.shape, *[1] * (values.ndim - 1))
            found[name] = kept.to(sum_type(self.dtype) if values.is_floating_point() else torch.int64)
        return found

    def mean_losses(self, examples: Examples, params: Params) -> Tensor:
        """The mean loss of each client's model over its examples, ``[cohort]``; 0 of a client without any."""
        counts = examples.device_counts
        sums = self.sums(examples, params)
        losses = sums.get("loss", torch.zeros(len(counts), device=counts.device))
        return losses / divisors(sums.get(AMOUNT, counts))


def samples_at_once(*shapes: tuple[int, ...]) -> int:
    """How many samples go through layers at once.

    Args:
        shapes: Shapes of what there is of each of them in memory, such as an input and an output.
    """
    largest = max(map(prod, shapes))
    return max(1, min(SAMPLES_AT_ONCE, KEPT_BYTES // (4 * largest)))
