"""The steps of a phase for several clients at once: the interface, and the general version by autograd."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pfl_lightning.client.epochs import Epoch
from pfl_lightning.client.layers import channels_last, part, rewinding, tensor_names
from pfl_lightning.client.losses import Loss
from pfl_lightning.client.optimizers import Moving, clipped, take_step
from pfl_lightning.client.penalties import Slope, slopes_of
from pfl_lightning.client.phase import Phase
from pfl_lightning.errors import PflError
from pfl_lightning.tree import Params, Tree, select

Forward = Callable[[nn.Module, Params, Tensor], Tensor]


class Steps(ABC):
    """Mini-batch steps for several clients: in each epoch ``enter`` and then ``step`` calls, at the end ``finish``.

    Args:
        network: The layers from the first trained one to the output.
        start: The tensors of this network before the phase, and extra tensors such as anchors.
        rows: Uninitialised rows ``[clients, ...]`` for the tensors that the phase changes; after ``finish`` they hold
            the result.
        phase: The phase to run.
        loss: The loss.

    Attributes:
        params: The tensors of this network, for the clients of the current step.
        moving: The trained parameters among them.
        extras: The extra tensors that do not belong to the network.
        gradients: Gradients of each sample that ``step`` has taken.
        kind: How the steps are computed, for the log.
    """

    kind: str

    def __init__(self, network: nn.Sequential, start: Params, rows: Tree, phase: Phase, loss: Loss) -> None:
        self.network = network
        self.phase = phase
        self.rows = rows
        self.loss = loss
        names = tensor_names(network)
        parameters = {name for name, _ in network.named_parameters()}
        tensors = start.moved_to(rows)
        self._params = tensors.select(names)
        self._extras = tensors.without(names)
        self._moving = Moving.start({name: rows[name] for name in sorted(rows) if name in parameters}, phase)
        self.clients = 0

    @abstractmethod
    def enter(self, epoch: Epoch) -> None:
        """Begin an epoch."""

    @abstractmethod
    def step_once(self, clients: int, batch: slice) -> Tensor:
        """One step of the optimizer; arguments and result as for ``step``."""

    def step(self, clients: int, batch: slice) -> Tensor:
        """The steps on a mini-batch; mini-batches come in order, and only the last of an epoch may be smaller.

        Args:
            clients: How many clients (always the first ones) take the steps.
            batch: The mini-batch: a slice of the epoch's samples.

        Returns:
            Sum of the losses of each client's samples before the first step, ``[clients]``.
        """
        self.attach(clients)
        self.gradients = self.phase.inner_steps
        losses = self.step_once(clients, batch)
        for _ in range(self.phase.inner_steps - 1):
            self.step_once(clients, batch)
        self.after_step()
        return losses

    @abstractmethod
    def finish(self) -> None:
        """End the phase."""

    def attach(self, clients: int) -> None:
        """Restrict the following steps to the first clients."""
        if clients != self.clients:
            self.clients = clients
            self.params = self._params.rows(0, clients)
            self.moving = self._moving.rows(clients)
            self.extras = self._extras.rows(0, clients).tree

    def penalty(self, tensors: Tree) -> Mapping[str, Slope]:
        """The gradient of the penalty; empty without one."""
        return slopes_of(self.phase.penalty, tensors, self.extras)

    def after_step(self) -> None:
        """Apply the phase's ``after_step``.

        Raises:
            PflError: If it changes a tensor that is not in ``trainable``.
        """
        if self.phase.after_step is None:
            return
        for name, tensor in self.phase.after_step(self.moving.tensors, self.extras).items():
            if name not in self.rows:
                raise PflError(f"phase.after_step: {name} is not possible; allowed: names in phase.trainable")
            if tensor is not self.extras.get(name):
                self.rows[name][: self.clients] = tensor


class AutogradSteps(Steps):
    """Steps by autograd, for any network and any phase.

    Args:
        forward: Computes the outputs of a network for every client.
        arguments: See ``Steps``.
    """

    kind = "by autograd"

    def __init__(self, forward: Forward, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.forward = forward

    def enter(self, epoch: Epoch) -> None:
        """Begin an epoch."""
        self.epoch = epoch.in_order
        self.independent = epoch.independent and epoch.independent.in_order

    @torch.no_grad()
    def step_once(self, clients: int, batch: slice) -> Tensor:
        """One step of the optimizer."""
        phase = self.phase
        moving = self.moving
        transform = phase.gradient_transform
        if transform is not None:
            again = self._gradient_again(clients, batch)  # before the first gradient, whose dropout it repeats
        losses, grads = self._gradient(self.epoch, clients, batch, moving.tensors)
        if transform is not None:
            grads = transform(moving.tensors, grads, again, self.extras)
        if phase.clip_norm is not None and grads:
            grads = clipped(grads, phase.clip_norm)
        take_step(moving, grads, phase)
        return (losses * self.epoch.present[:clients, batch]).sum(1)

    def _gradient_again(self, clients: int, batch: slice) -> Callable[[Tree], Tree]:
        """The gradient at other tensors: on the same mini-batch, with the same dropout, or on an independent one."""
        rewind = None if self.phase.independent_batch else rewinding(self.network, self.params.own)

        def gradient(tensors: Tree) -> Tree:
            self.gradients += 1
            if rewind is not None:
                rewind()
            return self._gradient(self.independent or self.epoch, clients, batch, tensors)[1]

        return gradient

    def _gradient(self, epoch: Epoch, clients: int, batch: slice, tensors: Tree) -> tuple[Tensor, Tree]:
        """Losses of a mini-batch, and the gradient of their mean plus the penalty."""
        seen = (slice(clients), batch)
        data = epoch.inputs[seen], epoch.targets[seen]
        features = {name: rows[seen] for name, rows in epoch.extras.items()}
        losses, grads = self._loss_gradient(tensors, *data, features, epoch.weights[seen])
        for name, slope in self.penalty(tensors).items():
            grads[name] = slope.added_to(grads[name], tensors[name])
        return losses, grads

    def _loss_gradient(
        self, tensors: Tree, inputs: Tensor, targets: Tensor, features: Tree, weights: Tensor
    ) -> tuple[Tensor, Tree]:
        """Loss of each sample, and the gradient of each client's weighted sum of losses; see ``loss_gradient``."""
        return loss_gradient(lambda leaves: self._losses(leaves, inputs, targets, features), tensors, weights)

    def _losses(self, leaves: Tree, inputs: Tensor, targets: Tensor, features: Tree) -> Tensor:
        """Loss of each sample, ``[clients, batch]``, where the trained parameters are ``leaves``."""
        return self.loss(self.forward(self.network, self.params.with_own(leaves), inputs), targets)

    def finish(self) -> None:
        """End the phase; the result is already in the rows."""


class FeatureSteps(AutogradSteps):
    """Steps by autograd along a ``feature_loss``.

    Args:
        map_clients: Maps a function over clients; see ``Backend.each``.
        body: Number of layers before the features.
        arguments: See ``Steps``.
    """

    kind = "by autograd, with a loss of features"

    def __init__(self, map_clients: Callable[..., Tree], body: int, *arguments: Any) -> None:
        Steps.__init__(self, *arguments)
        self.map_clients = map_clients
        self.body = part(self.network, 0, body)
        self.head = part(self.network, body)
        self.body_names = tensor_names(self.body)
        self.head_names = tensor_names(self.head)

    def _losses(self, leaves: Tree, inputs: Tensor, targets: Tensor, features: Tree) -> Tensor:
        def client(tensors: Tree, batch: Tensor, labels: Tensor, *frozen: Tensor) -> Tree:
            hidden = functional_call(self.body, select(tensors, self.body_names), batch) if len(self.body) else batch
            outputs = functional_call(self.head, select(tensors, self.head_names), hidden)
            visible = {**tensors, **dict(zip(features, frozen, strict=True))}
            return {"": self.phase.feature_losses(outputs, hidden, labels, visible)}

        extras = self._extras.rows(0, self.clients)
        params = Params({**self.params.shared, **extras.shared}, {**self.params.own, **extras.own, **leaves})
        return self.map_clients(client, params, channels_last(inputs, 2), targets, *features.values())[""]


def loss_gradient(
    losses_of: Callable[[Tree], Tensor], tensors: Mapping[str, Tensor], weights: Tensor
) -> tuple[Tensor, Tree]:
    """Loss of each sample, and the gradient of each client's weighted sum of losses.

    Args:
        losses_of: Losses, ``[clients, batch]``, from the tensors to differentiate with respect to.
        tensors: These tensors, ``[clients, ...]`` each.
        weights: ``[clients, batch]``.

    Returns:
        Losses ``[clients, batch]``, and each client's gradients, ``[clients, ...]`` by name.
    """
    with torch.enable_grad():
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}
        losses = losses_of(leaves)
        grads = torch.autograd.grad((losses * weights).sum(), list(leaves.values()), materialize_grads=True)
    return losses.detach(), dict(zip(leaves, grads, strict=True))
