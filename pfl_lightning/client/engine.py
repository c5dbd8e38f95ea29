"""What happens at clients, behind two doors: declared phases, and any function of one client."""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pfl_lightning.client.backend import Backend, ClientFunction
from pfl_lightning.client.batched import Batched
from pfl_lightning.client.examples import Examples
from pfl_lightning.client.layers import (
    BATCH_NORM,
    DROPOUT,
    SLOW_WHEN_BATCHED_ON_CPU,
    frozen_layers,
    has_layers,
    holds,
    layout,
    part,
    set_mode,
    shared_layers,
)
from pfl_lightning.client.linear_stack import LinearStack
from pfl_lightning.client.losses import hits, sample_losses
from pfl_lightning.client.phase import Phase
from pfl_lightning.client.sequential import Sequential
from pfl_lightning.client.steps import Epoch, Steps, batch_weights
from pfl_lightning.errors import PflError
from pfl_lightning.seeding import Key, permutations, random_bits, seed_of
from pfl_lightning.tree import Params, Tree

BackendName = Literal["auto", "sequential", "batched"]
SAMPLES_AT_ONCE = 1024  # through frozen layers and in evaluation; bounds the memory of activations


class Engine:
    """Runs the local work of a cohort. Pure: tensors in, tensors out.

    Args:
        network: What all clients compute; its own tensors are never read or written.
        backend: ``sequential``, ``batched``, or ``auto``: a fixed rule, since a choice by timing would let two runs of
            one command differ. It takes the batched backend, except for training BatchNorm and dropout, and on a CPU
            for convolutions and torch's fused recurrent layers that are the clients' own.
        chunk_size: Clients that train at once on the batched backend; by default as many as suit the device.

    Attributes:
        choices: What ran how, and why: by the layers that moved.

    Raises:
        PflError: If the backend cannot run this network.
    """

    def __init__(self, network: nn.Sequential, backend: BackendName = "auto", chunk_size: int | None = None) -> None:
        self.network, self.name, self.chunk_size = network, backend, chunk_size
        self.trainable = {name for name, _ in network.named_parameters()}
        self.has_batch_norm = has_layers(network, BATCH_NORM)
        self.choices: dict[str, str] = {}
        if backend == "batched" and self.has_batch_norm:
            raise PflError(
                "model.backend: batched is not possible with BatchNorm, whose statistics would count the padding of "
                "ragged clients; allowed: auto, sequential"
            )

    def backend(self, network: nn.Sequential, own: Tree, training: bool = True) -> Backend:
        """The backend for a part of the network in which these stacked tensors differ between clients."""
        if self.reason_for_sequential(network, own, training):
            return Sequential()
        return LinearStack(self.chunk_size) if LinearStack.suits(network) else Batched(self.chunk_size)

    def reason_for_sequential(self, network: nn.Sequential, own: Tree, training: bool = True) -> str:
        """Why a part of the network runs one client after another; empty if it does not."""
        if self.name != "auto":
            return "as told" if self.name == "sequential" else ""
        on_cpu = all(stack.device.type == "cpu" for stack in own.values())
        if training and has_layers(network, BATCH_NORM):
            return "BatchNorm would count the padding of ragged clients"
        if training and has_layers(network, DROPOUT):
            return "dropout would depend on the chunk"
        if on_cpu and has_layers(network, SLOW_WHEN_BATCHED_ON_CPU, own):
            return "a CPU is faster so for convolutions and fused recurrent layers"
        return ""

    def each(self, function: ClientFunction, params: Params, *arguments: Tensor) -> Tree:
        """The general door: any pure function of one client's tensors, mapped over the cohort.

        Args:
            function: Takes a tree with all tensors of a client, and its row of each argument; returns a tree.
            params: Tensors of the cohort.
            arguments: One row per client, ``[cohort, ...]``.

        Returns:
            The results, ``[cohort, ...]``.
        """
        return self.backend(self.network, params.own).each(function, params, *arguments)

    @torch.inference_mode(False)  # evaluation refits heads
    @torch.enable_grad()
    def train(self, examples: Examples, params: Params, phase: Phase, key: Key) -> tuple[Params, Tensor]:
        """The declarative door: one local phase at every client of the cohort.

        Args:
            examples: Training examples of the cohort, sorted by falling count, no client without any.
            params: All tensors of the network; not changed.
            phase: What to do.
            key: What the batch orders are for, such as ``(seed, "train", round, pass, part)``.

        Returns:
            The tensors after the phase, those that moved now under ``own``, and each client's mean training loss over
            the last epoch, ``[cohort]``.
        """
        set_mode(self.network, phase.moves)
        frozen = frozen_layers(self.network, phase.moves)
        own = params.room(phase.moves, len(examples))
        backend = self.backend(part(self.network, frozen), own)
        size = backend.tile_size([own[name] for name in sorted(phase.moves & self.trainable)])
        losses = []
        for start, tile in examples.split(size):
            rows = {name: stack[start : start + len(tile)] for name, stack in own.items()}
            received = params.rows(start, start + len(tile))
            losses.append(self._train_tile(backend, frozen, tile, received, rows, phase, key))
        shared = {name: tensor for name, tensor in params.shared.items() if name not in own}
        return Params(shared, {**params.own, **own}), torch.cat(losses)

    def _train_tile(
        self, backend: Backend, frozen: int, examples: Examples, received: Params, rows: Tree, phase: Phase, key: Key
    ) -> Tensor:
        """Train some clients, whose results go into ``rows``; the first ``frozen`` layers stay as they are."""
        network, longest = part(self.network, frozen), examples.longest
        stays = phase.epochs == 1 or not examples.samples.transform.random
        steps = backend.steps(network, received.select(network.state_dict()), rows, phase, longest if stays else 0)
        self._note(network, backend, rows, steps)
        starts = range(0, longest, phase.batch_size)[: phase.steps]
        # clients are sorted by falling count: those that have no such batch lie behind
        batches = [(int((examples.counts > at).sum()), slice(at, at + phase.batch_size)) for at in starts]
        for epoch in self._epochs(frozen, examples, received, phase, key):
            steps.enter(epoch)
            losses = epoch.present.new_zeros(len(examples))
            for clients, batch in batches:
                losses[:clients] += steps.step(clients, batch)
        steps.finish()
        return losses / epoch.counts

    def _note(self, network: nn.Sequential, backend: Backend, own: Tree, steps: Steps) -> None:
        """Write down how a phase runs, and why."""
        layers = ", ".join(name for name, layer in network.named_children() if holds(name, layer, own))
        told = "as told" if self.name == "batched" else "no layer needs or prefers one client at a time"
        reason = self.reason_for_sequential(network, own) or told
        self.choices[layers] = f"{backend.name} {steps.kind} ({reason})"

    def _epochs(self, frozen: int, examples: Examples, params: Params, phase: Phase, key: Key) -> Iterator[Epoch]:
        """What some clients pass over; the inputs are what comes out of the first ``frozen`` layers."""
        ids, longest = examples.ids, examples.longest
        counts = examples.counts.to(ids.device, non_blocking=True)
        positions = torch.arange(longest, device=ids.device).expand(len(ids), -1)
        present = (positions < counts[:, None]).to(next(self.network.parameters()).dtype)
        weights = batch_weights(present, phase.batch_size)
        anew = examples.samples.transform.random or phase.epochs == 1  # made for one epoch, so made in its order
        has_dropout = has_layers(part(self.network, frozen), DROPOUT)
        for epoch in range(phase.epochs):
            order = permutations((*key, "order", epoch), ids, counts, longest)
            if anew:
                bits = random_bits((*key, "augment", epoch), ids, longest).gather(1, order)
                inputs = self._features(frozen, params, examples.gather(order, bits))
            elif epoch == 0:
                inputs = self._features(frozen, params, examples.gather(positions))
            if has_dropout:
                torch.manual_seed(seed_of(*key, "dropout", epoch, examples.first_id))
            yield Epoch(inputs, None if anew else order, examples.targets(order), counts, present, weights)

    @torch.no_grad()
    def _features(self, layers: int, params: Params, inputs: Tensor) -> Tensor:
        """What comes out of the leading layers for inputs ``[clients, samples, ...]``; no layers hand the inputs on."""
        return self._outputs(part(self.network, 0, layers), params, inputs) if layers else inputs

    def _outputs(self, network: nn.Sequential, params: Params, inputs: Tensor) -> Tensor:
        """Outputs for all inputs in large batches, across clients through the layers that they share."""
        params = params.select(network.state_dict())
        if not params.own:
            batches = layout(inputs.flatten(0, 1)).split(SAMPLES_AT_ONCE)
            outputs = torch.cat([functional_call(network, params.shared, batch) for batch in batches])
            return outputs.unflatten(0, inputs.shape[:2])
        if shared := shared_layers(network, params.own):
            hidden = self._outputs(part(network, 0, shared), params, inputs)
            return self._outputs(part(network, shared), params, hidden)
        backend = self.backend(network, params.own, self.network.training)
        batches = inputs.split(max(1, SAMPLES_AT_ONCE // len(inputs)), dim=1)
        return torch.cat([backend.forward(network, params, batch) for batch in batches], dim=1)

    @torch.no_grad()
    def score(self, examples: Examples, params: Params) -> tuple[Tensor, Tensor]:
        """Judge each client's model on its examples.

        Args:
            examples: Held-out examples of the cohort; a client may have none.
            params: All tensors of the network.

        Returns:
            The number of correct predictions and the sum of the losses of each client, ``[cohort]``.
        """
        self.network.eval()
        counts = examples.counts.to(examples.ids.device, non_blocking=True)
        correct, losses = (
            torch.zeros_like(counts),
            next(self.network.parameters()).new_zeros(len(counts), device=counts.device),
        )
        positions = torch.arange(examples.longest, device=counts.device).expand(len(counts), -1)
        for batch in positions.split(max(1, SAMPLES_AT_ONCE // len(counts)), dim=1):
            outputs = self._outputs(self.network, params, examples.gather(batch))
            targets, present = examples.targets(batch), batch < counts[:, None]
            correct += (hits(outputs, targets) & present).sum(1)
            losses += (sample_losses(outputs, targets) * present).sum(1)
        return correct, losses
