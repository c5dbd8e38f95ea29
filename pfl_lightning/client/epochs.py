"""The samples that clients visit in each epoch of a phase, and their order."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pfl_lightning.client.examples import Examples
from pfl_lightning.client.phase import Phase
from pfl_lightning.seeding import Key, permutations, random_bits, samples
from pfl_lightning.tree import Tree, sum_type

Frozen = tuple[Tensor, Tree]
Amounts = Callable[[Tensor], Tensor | None]

FEW = 64  # up to so many samples in an epoch are drawn one by one, at a cost of FEW squared


class Epoch(NamedTuple):
    """The samples of one epoch, in the order in which the clients visit them.

    Attributes:
        inputs: Inputs of the network, ``[clients, samples, ...]``.
        order: Indices into the inputs in visiting order, ``[clients, visited]``; None if they are already in it.
        targets: Targets in visiting order, ``[clients, visited, ...]``.
        counts: Samples that each client visits, ``[clients]``.
        total: What their losses are divided by for the mean, ``[clients]``: their number, or their amount.
        present: Factor of each sample's loss, which is usually 1, and 0 for padding, ``[clients, visited]``.
        amounts: How much each sample is, usually 1, and 0 for padding, ``[clients, visited]``.
        weights: Factor of each sample's loss in the mean loss of its mini-batch, 0 for padding, ``[clients, visited]``.
        features: Features of frozen models for each input, ``[clients, samples, ...]`` by prefix, and the phase's
            ``sample_rows``.
        independent: For ``independent_batch``, the same epoch in an independent order.
    """

    inputs: Tensor
    order: Tensor | None
    targets: Tensor
    counts: Tensor
    total: Tensor
    present: Tensor
    amounts: Tensor
    weights: Tensor
    features: Tree
    independent: "Epoch | None" = None

    @property
    def in_order(self) -> "Epoch":
        """The same with inputs and features in visiting order."""
        features = {name: in_order(rows, self.order) for name, rows in self.features.items()}
        return self._replace(inputs=in_order(self.inputs, self.order), features=features, order=None)

    @property
    def extras(self) -> Tree:
        """What a ``feature_loss`` sees of each sample, in visiting order, ``[clients, visited, ...]`` by name."""
        features = {name: in_order(rows, self.order) for name, rows in self.features.items()}
        return {**features, "weights": self.weights, "amounts": self.amounts}


class Epochs:
    """The epochs of a phase for some clients.

    The inputs of all samples are computed once and kept for the whole phase; each epoch only reorders them. If inputs
    are augmented at random, or all epochs together visit no more samples than the client has, each epoch computes its
    own inputs, in visiting order.

    Args:
        examples: Training examples of the clients.
        phase: The phase.
        key: Key for orders and augmentation.
        frozen: Computes the outputs of the network's frozen layers, and the features of frozen models, for inputs
            ``[clients, samples, ...]``, so many of which are of samples.
        like: A tensor of the type of the weights.
        extra: Extra tensors of the clients, among them those with one row for each sample.
        amounts: Tells from targets ``[clients, visited, ...]`` how much each sample is, ``[clients, visited]``; None
            for 1 each.
    """

    def __init__(
        self,
        examples: Examples,
        phase: Phase,
        key: Key,
        frozen: Callable[[Tensor, int], Frozen],
        like: Tensor,
        extra: Tree,
        amounts: Amounts,
    ) -> None:
        self.examples = examples
        self.phase = phase
        self.key = key
        self.frozen = frozen
        self.dtype = like.dtype
        self.extra = extra
        self.amounts = amounts
        self.visited = phase.visited(examples.longest)
        augmented = examples.samples.transform.random
        self.keeps_inputs = phase.epochs * self.visited > examples.longest and not augmented

    @property
    def fixed(self) -> int:
        """Number of the largest client's inputs if they stay the same during the whole phase; 0 if they change."""
        if self.keeps_inputs:
            return self.examples.longest
        return self.visited if self.phase.epochs == 1 else 0

    @property
    def batches(self) -> list[tuple[int, slice, int]]:
        """The mini-batches of an epoch.

        Returns:
            How many clients (always the first ones) have samples in a mini-batch, its slice, and the samples in it.
        """
        size = self.phase.batch_size
        starts = torch.arange(0, self.visited, size)
        present = (self.examples.counts - starts[:, None]).clamp(0, size)  # [batches, clients]
        counts = zip((present > 0).sum(1).tolist(), present.sum(1).tolist(), starts.tolist(), strict=True)
        return [(clients, slice(start, start + size), samples) for clients, samples, start in counts]

    @property
    def computed(self) -> int:
        """Number of samples whose inputs are computed at a time: all, or those of an epoch."""
        counts = self.examples.counts
        return int(counts.sum() if self.keeps_inputs else self.phase.visited(counts).sum())

    def __iter__(self) -> Iterator[Epoch]:
        inputs = self._inputs(self.examples.positions) if self.keeps_inputs else None
        epochs = self._epochs(self.key, inputs)
        if not self.phase.independent_batch:
            yield from epochs
            return
        for epoch, independent in zip(epochs, self._epochs((*self.key, "other"), inputs), strict=True):
            yield epoch._replace(independent=independent)

    def _inputs(self, order: Tensor, bits: Tensor | None = None) -> Frozen:
        """What the frozen layers and models make of the samples at some positions, ``[clients, visited]``."""
        return self.frozen(self.examples.gather(order, bits), self.computed)

    def _epochs(self, key: Key, kept: Frozen | None) -> Iterator[Epoch]:
        """The epochs in the orders of a key; see ``_epoch``."""
        for number, order in enumerate(self._orders(key)):
            yield self._epoch(order, (*key, "augment", number), kept)

    def _orders(self, key: Key) -> Iterator[Tensor]:
        """For each epoch, the positions of the samples in visiting order, ``[clients, visited]``."""
        keys = [(*key, "order", epoch) for epoch in range(self.phase.epochs)]
        return visiting_orders(self.examples, self.phase, keys)

    def _epoch(self, order: Tensor, key: Key, kept: Frozen | None) -> Epoch:
        """The samples of an epoch in this order.

        Args:
            order: The order.
            key: For augmentation.
            kept: The inputs and features of all samples, if they stay the same during the whole phase.
        """
        examples = self.examples
        counts = examples.device_counts
        if kept is None:
            bits = augmentation_bits(examples, order, key)
        inputs, features = kept or self._inputs(order, bits)
        targets = examples.targets(order)
        visited = counts.clamp(max=self.visited)
        present = (torch.arange(self.visited, device=counts.device) < counts[:, None]).to(self.dtype)
        own_amounts = self.amounts(targets)
        amounts = present if own_amounts is None else present * own_amounts
        total = visited if own_amounts is None else divisors(amounts.sum(1, dtype=sum_type(self.dtype)))
        weights = batch_weights(present, amounts, self.phase.batch_size)
        if self.phase.sample_weights is not None:
            factors = in_order(self.extra[self.phase.sample_weights], order)
            present = present * factors
            weights = weights * factors
        rows = {name: in_order(self.extra[name], None if kept else order) for name in self.phase.sample_rows}
        kept_order = order if kept else None
        extras = {**features, **rows}
        return Epoch(inputs, kept_order, targets, visited, total, present, amounts, weights, extras)


def visiting_orders(examples: Examples, phase: Phase, keys: Sequence[Key]) -> Iterator[Tensor]:
    """The positions of the samples in visiting order in an epoch of each of some keys, ``[clients, visited]``."""
    ids = examples.ids
    counts = examples.device_counts
    visited = phase.visited(examples.longest)
    if phase.visited(FEW + 1) <= FEW:
        return iter(samples(keys, ids, counts, visited))
    return (permutations(key, ids, counts, examples.longest, visited) for key in keys)


def augmentation_bits(examples: Examples, order: Tensor, key: Key) -> Tensor | None:
    """Random integers that augment the samples of an epoch in this order, ``[clients, visited]``; None if none do."""
    if not examples.samples.transform.random:
        return None
    return random_bits(key, examples.ids, examples.longest).gather(1, order)


def in_order(rows: Tensor, order: Tensor | None) -> Tensor:
    """Reorder the second axis of ``[clients, samples, ...]`` by ``[clients, visited]``; None changes nothing."""
    return rows if order is None else rows[_clients(order), order]


def out_of_order(rows: Tensor, order: Tensor | None, samples: int) -> Tensor:
    """Undo ``in_order``, with zeros for the samples that were not visited, ``[clients, samples, ...]``."""
    if order is None:
        return rows
    result = rows.new_zeros(len(rows), samples, *rows.shape[2:])
    result[_clients(order), order] = rows
    return result


def batch_weights(present: Tensor, amounts: Tensor, batch_size: int) -> Tensor:
    """Factor of each sample's loss in the mean loss of its mini-batch, ``[clients, samples]``.

    Args:
        present: Which samples are present, ``[clients, samples]``.
        amounts: How much each of them is, 0 for those that are not, ``[clients, samples]``.
        batch_size: Samples in a mini-batch.
    """
    totals = [divisors(batch.sum(1, keepdim=True)) for batch in amounts.split(batch_size, dim=1)]
    batches = present.split(batch_size, dim=1)
    return torch.cat([batch / total for batch, total in zip(batches, totals, strict=True)], dim=1)


def divisors(totals: Tensor) -> Tensor:
    """Totals to divide by, with 1 where there is nothing to divide."""
    return totals.masked_fill(totals == 0, 1)


def _clients(order: Tensor) -> Tensor:
    return torch.arange(len(order), device=order.device)[:, None]
