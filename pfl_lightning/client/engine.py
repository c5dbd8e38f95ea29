"""What happens at clients, behind two doors: declared phases, and any function of one client."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pfl_lightning.client.backend import Backend, Batch, ClientFunction
from pfl_lightning.client.batched import Batched
from pfl_lightning.client.examples import Examples
from pfl_lightning.client.layers import (
    BATCH_NORM,
    DROPOUT,
    SLOW_WHEN_BATCHED_ON_CPU,
    frozen_layers,
    has_layers,
    layout,
    part,
    set_mode,
)
from pfl_lightning.client.linear_stack import LinearStack
from pfl_lightning.client.losses import hits, sample_losses
from pfl_lightning.client.phase import Phase
from pfl_lightning.client.sequential import Sequential
from pfl_lightning.client.sgd import Moving
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
            one command differ. It takes the batched backend, except for BatchNorm and dropout, and on a CPU for
            convolutions and torch's fused recurrent layers that are the clients' own.

    Raises:
        PflError: If the backend cannot run this network.
    """

    def __init__(self, network: nn.Sequential, backend: BackendName = "auto") -> None:
        self.network = network
        self.name = backend
        self.trainable = {name for name, _ in network.named_parameters()}
        self.has_batch_norm = has_layers(network, BATCH_NORM)
        if backend == "batched" and self.has_batch_norm:
            raise PflError(
                "model.backend: batched is not possible with BatchNorm, whose statistics would count the padding of "
                "ragged clients; allowed: auto, sequential"
            )

    def backend(self, network: nn.Module, own: Tree) -> Backend:
        """The backend for a part of the network in which these stacked tensors differ between clients."""
        on_cpu = all(stack.device.type == "cpu" for stack in own.values())
        unsuited = self.has_batch_norm or has_layers(network, DROPOUT)
        slow = on_cpu and has_layers(self.network, SLOW_WHEN_BATCHED_ON_CPU, own)
        if self.name == "sequential" or (self.name == "auto" and (unsuited or slow)):
            return Sequential()
        return LinearStack() if LinearStack.suits(network) else Batched()

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
        params = params.owned(phase.moves, len(examples))
        moving = [params.own[name] for name in sorted(phase.moves & self.trainable)]
        frozen = frozen_layers(self.network, phase.moves)
        backend = self.backend(part(self.network, frozen), {name: params.own[name] for name in phase.moves})
        set_mode(self.network, phase.moves)
        losses = [
            self._train_tile(backend, frozen, tile, params.rows(start, start + len(tile)), phase, key)
            for start, tile in examples.split(backend.tile_size(moving))
        ]
        return params, torch.cat(losses)

    def _train_tile(
        self, backend: Backend, frozen: int, examples: Examples, params: Params, phase: Phase, key: Key
    ) -> Tensor:
        """Move some clients' rows of ``params.own`` in place; the first ``frozen`` layers stay as they are."""
        network = part(self.network, frozen)
        params, leading = params.select(network.state_dict()), params
        has_dropout = has_layers(network, DROPOUT)
        moving = Moving.start(sorted(phase.moves & self.trainable), params.own, phase)
        ids, longest = examples.ids, examples.longest
        counts = examples.counts.to(ids.device)
        positions = torch.arange(longest, device=ids.device).expand(len(ids), -1)
        present = (positions < counts[:, None]).to(next(iter(moving.tensors.values())).dtype)
        losses = present.new_zeros(len(ids))
        for epoch in range(phase.epochs):
            if epoch == 0 or examples.samples.transform.random:
                bits = random_bits((*key, "augment", epoch), ids, longest)
                inputs = self._features(frozen, backend, leading, examples.gather(positions, bits))
            if has_dropout:
                torch.manual_seed(seed_of(*key, "dropout", epoch, int(ids[0])))
            order = permutations((*key, "order", epoch), ids, counts, longest)
            shuffled, targets = _reorder(inputs, order), examples.targets(order)
            losses.zero_()
            for start in range(0, longest, phase.batch_size)[: phase.steps]:
                active = int((examples.counts > start).sum())  # clients are sorted: those without this step lie behind
                taken = (slice(active), slice(start, start + phase.batch_size))
                losses[:active] += backend.step(
                    network,
                    params.rows(0, active),
                    moving.rows(active),
                    Batch(shuffled[taken], targets[taken], present[taken]),
                    phase,
                )
        return losses / counts

    def _features(self, layers: int, backend: Backend, params: Params, inputs: Tensor) -> Tensor:
        """Outputs of the frozen leading layers for all inputs; the inputs themselves where no layer is frozen."""
        return self._forward_all(part(self.network, 0, layers), backend, params, inputs) if layers else inputs

    @torch.no_grad()
    def _forward_all(self, network: nn.Module, backend: Backend, params: Params, inputs: Tensor) -> Tensor:
        """Outputs for all inputs ``[clients, samples, ...]`` in large batches, across clients where they share it."""
        params = params.select(network.state_dict())
        if not params.own:
            batches = layout(inputs.flatten(0, 1)).split(SAMPLES_AT_ONCE)
            return torch.cat([functional_call(network, params.shared, batch) for batch in batches]).unflatten(
                0, inputs.shape[:2]
            )
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
        backend = self.backend(self.network, params.own)
        counts = examples.counts.to(examples.ids.device)
        correct, losses = torch.zeros_like(counts), torch.zeros(len(counts), device=counts.device)
        positions = torch.arange(examples.longest, device=counts.device).expand(len(counts), -1)
        for batch in positions.split(max(1, SAMPLES_AT_ONCE // len(counts)), dim=1):
            outputs = self._forward_all(self.network, backend, params, examples.gather(batch))
            targets, present = examples.targets(batch), batch < counts[:, None]
            correct += (hits(outputs, targets) & present).sum(1)
            losses += (sample_losses(outputs, targets) * present).sum(1)
        return correct, losses


def _reorder(rows: Tensor, order: Tensor) -> Tensor:
    """Put the second axis of ``[clients, samples, ...]`` in the order ``[clients, samples]``."""
    return rows[torch.arange(len(rows), device=rows.device)[:, None], order]
