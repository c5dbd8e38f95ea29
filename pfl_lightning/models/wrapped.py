from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from pfl_lightning.models.anatomy import Anatomy
from pfl_lightning.models.network import InputKind, Network
from pfl_lightning.tree import Tree


class Wrapped(Network):
    """Any module as layers: what it ends with, such as its head, and what is left of it.

    A module that takes what another one returned and nothing else, and so on to the output, is a layer of its own, as
    in ``nn.Sequential``, however deep it is inside. What comes before is one layer, called like the module's class.
    Names that users choose and see, such as those of ``head``, are the module's own.

    The layers have two marks for the engine: ``runs_alone`` if ``vmap`` cannot run one for several clients at once, and
    ``draws_at_random`` if it does so in training mode.

    Args:
        module: The module, which becomes part of the network.
        anatomy: What it does with the inputs.
        inputs: A batch of two inputs.
        takes: The kind of its inputs.
    """

    def __init__(self, module: nn.Module, anatomy: Anatomy, inputs: Tensor, takes: InputKind) -> None:
        whole = deepcopy(module)
        layers = dict(anatomy.layers("", module)) if len(anatomy.calls[""]) == 1 else {"": module}
        if not _same(whole, layers.values(), inputs):
            module, layers = whole, {"": whole}
        self._paths = {path.replace(".", "_") or type(module).__name__: path for path in layers}
        super().__init__(dict(zip(self._paths, layers.values(), strict=True)))
        self._units, self._shell, self.takes = anatomy.units(whole), (module,), takes
        _mark(layers.values(), inputs)
        for norm in (inner for inner in self.modules() if isinstance(inner, _BatchNorm)):
            norm.register_forward_pre_hook(_before_norm)
            norm.register_forward_hook(_after_norm)
        self.train()

    @property
    def kind(self) -> str:
        """Name of the module's class."""
        return type(self._shell[0]).__name__

    @property
    def units(self) -> list[str]:
        """The innermost modules with parameters of their own, in the order in which they run."""
        return self._units

    def own_name(self, name: str) -> str:
        """The module's name of a tensor."""
        layer, _, rest = name.partition(".")
        return ".".join(filter(None, (self._paths[layer], rest)))

    def module_with(self, tensors: Tree) -> nn.Module:
        """A module of the user's class with these tensors, ``[...]`` each, under the network's names."""
        copy = deepcopy(self)
        (module,) = copy._shell
        for layer, path in self._paths.items():
            if path:
                parent, _, name = path.rpartition(".")
                setattr(module.get_submodule(parent), name, copy.get_submodule(layer))
        module.load_state_dict({self.own_name(name): tensor for name, tensor in tensors.items()})
        return module


@torch.no_grad()
def _same(whole: nn.Module, layers: Iterable[nn.Module], inputs: Tensor) -> bool:
    """Whether layers one after another do the same as the whole module."""
    expected = whole.eval()(inputs)
    try:
        return torch.equal(nn.Sequential(*layers).eval()(inputs), expected)
    except Exception:  # such as of a module that looks into its last layer
        return False


@torch.no_grad()
def _mark(layers: Iterable[nn.Module], inputs: Tensor) -> None:
    """Mark the layers for the engine."""
    for layer in layers:
        marks = {"runs_alone": not _runs_for_many(layer, inputs), "draws_at_random": _draws(layer, inputs)}
        vars(layer).update(marks)
        inputs = layer.eval()(inputs)


def _runs_for_many(layer: nn.Module, inputs: Tensor) -> bool:
    """Whether ``vmap`` runs a layer for two clients: with gradients in training mode, without them otherwise."""
    stacks = {name: torch.stack([tensor] * 2) for name, tensor in layer.state_dict().items()}
    trained = {name: stack.requires_grad_() for name, stack in stacks.items() if stack.is_floating_point()}

    def client(tensors: Tree, batch: Tensor) -> Tensor:
        outputs: Tensor = functional_call(layer, tensors, batch)
        return outputs

    try:
        for training in (True, False):
            layer.train(training)
            with torch.set_grad_enabled(training):
                vmap(client, randomness="different")({**stacks, **trained}, torch.stack([inputs] * 2))
    except Exception:  # whatever torch says to code that depends on data, fused layers and the like
        return False
    return True


def _draws(layer: nn.Module, inputs: Tensor) -> bool:
    """Whether a layer draws random numbers in training mode."""
    before = torch.get_rng_state()
    deepcopy(layer).train()(inputs)
    return not torch.equal(before, torch.get_rng_state())


def _before_norm(norm: nn.Module, arguments: tuple[Any, ...]) -> None:
    """One value has no variance: BatchNorm takes its running statistics for a mini-batch of one such sample."""
    (batch,) = arguments
    one = norm.training and batch.numel() == batch.shape[1]
    vars(norm).update(takes_one=one, training=norm.training and not one)


def _after_norm(norm: nn.Module, *_: Any) -> None:
    norm.training = bool(norm.training or norm.takes_one)
