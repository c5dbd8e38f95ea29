"""The steps of a phase through a stack of linear layers."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from pfl_lightning.client.epochs import Epoch
from pfl_lightning.client.linear.dual import DualLayer
from pfl_lightning.client.linear.layer import After, LinearLayer
from pfl_lightning.client.linear.recursion import Tie
from pfl_lightning.client.losses import Loss
from pfl_lightning.client.penalties import Correlation, Proximity, Total
from pfl_lightning.client.phase import Follow, Phase
from pfl_lightning.client.steps import AutogradSteps, Steps
from pfl_lightning.tree import Params, Tree


class LinearSteps(Steps):
    """The steps of a stack of linear layers, with hand-written gradients.

    Args:
        network: The stack.
        start: See ``Steps``.
        rows: See ``Steps``.
        phase: The phase to run.
        loss: The loss.
        samples: See ``Backend.steps``.
        body: Number of linear layers before the features, for a phase with a ``feature_loss``.
    """

    epoch: Epoch
    kind = "by hand"

    def __init__(
        self, network: nn.Sequential, start: Params, rows: Tree, phase: Phase, loss: Loss, samples: int, body: int = 0
    ) -> None:
        self.body = body
        layers = _linear_layers(network)
        self.layers = [LinearLayer(name, phase, after) for name, after in layers.items()]
        first = next(iter(layers))
        weight = f"{first}.weight"
        tied = tie_of(weight, start, phase)
        if tied is not None and weight in rows and DualLayer.pays(samples, rows[weight], phase):
            copy = f"{phase.after_step.prefix}.{weight}" if isinstance(phase.after_step, Follow) else ""
            start_weight = start.tree[weight]
            self.layers[0] = DualLayer(first, phase, layers[first], start_weight, rows[weight], *tied, rows.get(copy))
            rows = {name: row for name, row in rows.items() if name not in (weight, copy)}
            self.kind = "by hand, the first layer in dual form"
        super().__init__(network, start, rows, phase, loss)

    def enter(self, epoch: Epoch) -> None:
        """Begin an epoch."""
        self.epoch = epoch
        self.sample_extras = epoch.extras
        self.layers[0].enter(epoch)

    @torch.no_grad()
    def step_once(self, clients: int, batch: slice) -> Tensor:
        """One step of the optimizer."""
        first, *later = self.layers
        hidden = [first.read(clients, batch)]
        for layer in later:
            hidden.append(layer.forward(hidden[-1]))
        seen = slice(clients), batch
        at_features: Tensor | float = 0.0
        if self.phase.feature_loss is None:
            losses, grad = self.loss.with_gradients(hidden[-1], self.epoch.targets[seen])
            grad *= self.epoch.weights[seen][..., None]
        else:
            losses, grad, at_features = self._with_gradients(hidden[-1], hidden[self.body - 1], seen)
        penalty = self.penalty(self.moving.tensors)
        for number, layer in reversed([*enumerate(later, start=1)]):
            grad = layer.backward(grad, penalty)
            if number == self.body:
                grad += at_features
        first.move(first.before_activation(grad), penalty)  # the gradient of its inputs is not needed
        return (losses * self.epoch.present[seen]).sum(1)

    def _with_gradients(
        self, outputs: Tensor, features: Tensor, seen: tuple[slice, slice]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Losses of samples, and the gradients of their mean by outputs and features."""
        with torch.enable_grad():
            leaves = [tensor.detach().requires_grad_() for tensor in (outputs, features)]
            extras = self._extras.rows(0, self.clients).own
            batch = [rows[seen] for rows in (self.epoch.targets, *self.sample_extras.values())]
            losses = vmap(self._losses_of_client, randomness="different")(extras, *leaves, *batch)
            mean = (losses * self.epoch.weights[seen]).sum()
            by_outputs, by_features = torch.autograd.grad(mean, leaves, materialize_grads=True)
        return losses.detach(), by_outputs, by_features

    def _losses_of_client(
        self, extras: Tree, outputs: Tensor, features: Tensor, targets: Tensor, *rows: Tensor
    ) -> Tensor:
        of_samples = dict(zip(self.sample_extras, rows, strict=True))
        return self.phase.feature_losses(outputs, features, targets, {**self._extras.shared, **extras, **of_samples})

    def finish(self) -> None:
        """End the phase."""
        self.layers[0].finish()

    def attach(self, clients: int) -> None:
        """Restrict the following steps to the first clients."""
        if clients != self.clients:
            super().attach(clients)
            for layer in self.layers:
                layer.attach(self.params, self.moving)


class LinearGradients(AutogradSteps):
    """The steps of a stack of linear layers whose rules see each client's whole gradient, which is computed by hand.

    Autograd would give it transposed, so that every operation on it took several times as long.

    Args:
        arguments: See ``AutogradSteps``.
    """

    kind = "by hand, with whole gradients"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.layers = [LinearLayer(name, self.phase, after) for name, after in _linear_layers(self.network).items()]

    def _loss_gradient(
        self, tensors: Tree, inputs: Tensor, targets: Tensor, features: Tree, weights: Tensor
    ) -> tuple[Tensor, Tree]:
        params = self.params.with_own(tensors)
        outputs = inputs.flatten(2)
        grads: Tree = {}
        for layer in self.layers:
            layer.attach(params, self.moving)
            outputs = layer.forward(outputs)
        losses, grad = self.loss.with_gradients(outputs, targets)
        grad *= weights[..., None]
        for layer in reversed(self.layers):
            grad = layer.before_activation(grad)
            grads |= layer.gradients(grad)
            if layer is not self.layers[0]:
                grad = grad @ layer.weight
        return losses, {name: grads[name] for name in tensors}


def tie_of(weight: str, start: Params, phase: Phase) -> tuple[Tie, Tensor | None] | None:
    """How a weight is tied to an anchor that starts as the weight, and to a tensor that stays, and that tensor.

    None if the phase has other rules for the weight.
    """
    follow = phase.after_step
    tensors = start.tree
    still = None
    penalties = phase.penalty.penalties if isinstance(phase.penalty, Total) else (phase.penalty,) * bool(phase.penalty)
    if phase.inner_steps > 1 or phase.optimizer != "SGD" or not isinstance(follow, Follow | None):
        return None
    if follow and (not follow.rate or f"{follow.prefix}.{weight}" not in phase.trainable):
        return None
    tie = Tie(follows=follow.rate if follow else 0.0)
    for penalty in penalties:
        if not isinstance(penalty, Proximity | Correlation):
            return None
        anchor = tensors.get(f"{penalty.anchor}.{weight}")
        if isinstance(penalty, Proximity):
            tie = tie._replace(of_weight=tie.of_weight + penalty.strength)
        if anchor is not None and layout_of(anchor) == layout_of(tensors[weight]):
            tie = tie._replace(of_anchor=tie.of_anchor - penalty.strength)
            if follow and follow.prefix != penalty.anchor:
                return None
        elif anchor is not None and still is None and f"{penalty.anchor}.{weight}" not in phase.trainable:
            tie = tie._replace(of_still=-penalty.strength)
            still = anchor
        else:
            return None
    if (follow and not tie.of_anchor) or (still is not None and not tie.of_still):
        return None
    return tie, still


def layout_of(tensor: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    """Where a tensor lies in memory, and how; equal for two views of the same entries."""
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def _linear_layers(network: nn.Sequential) -> dict[str, After]:
    """Names of the linear layers, and what follows each."""
    layers: dict[str, After] = {}
    for name, layer in network.named_children():
        if isinstance(layer, nn.Linear):
            last = name
            layers[last] = After()
        elif isinstance(layer, nn.ReLU):
            layers[last] = layers[last]._replace(relu=True)
        elif isinstance(layer, nn.Dropout) and layer.p:
            layers[last] = layers[last]._replace(dropout=layer.p, stream=f"{name}.stream")
        elif isinstance(layer, nn.AdaptiveAvgPool1d):
            layers[last] = layers[last]._replace(pool=layer.output_size)
    return layers
