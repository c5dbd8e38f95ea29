from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from pfl_lightning.errors import PflError, one_line
from pfl_lightning.imports import unwrap_partial
from pfl_lightning.memory import is_exhausted
from pfl_lightning.models.checks import check_outputs, two_inputs
from pfl_lightning.models.factory import NetworkFactory, made
from pfl_lightning.models.network import InputKind, Network, trains
from pfl_lightning.models.wrapped import Wrapped, are_tied
from pfl_lightning.seeding import seed_of
from pfl_lightning.tree import BATCH_NORM, CONSTANTS


def start_network(
    make: NetworkFactory,
    input_shape: tuple[int, ...],
    num_classes: int,
    seed: int,
    pretrained: Mapping[str, Tensor],
    input_kind: InputKind = "numbers",
    extend: Callable[[Network], None] | None = None,
) -> Network:
    """Make a network, whose initial weights depend on the seed but not on the state of torch's generator.

    Args:
        make: Builds the network, which may be any module.
        input_shape: Shape of one input.
        num_classes: Number of classes.
        seed: Seed of the initial weights.
        pretrained: Pretrained tensors by name; names that the network does not have are ignored.
        input_kind: The kind of the inputs.
        extend: Adds modules to the new network.

    Raises:
        PflError: If the network cannot be made or does not fit the inputs, the classes or the memory, or if a
            pretrained tensor does not fit the network.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, "network"))
        module = _made(make, input_shape, num_classes)
        if isinstance(module, Network) and not are_tied([*module.children()]):
            network = module
            try:
                _mark_constants(network, two_inputs(input_shape, input_kind))
            except Exception as error:  # whatever it raises for inputs that do not fit
                raise _unfit(network.kind, input_shape, error) from error
        else:
            network = _wrapped(module, input_shape, num_classes, input_kind)
        if extend is not None:
            extend(network)
        for norm in (inner for inner in network.modules() if isinstance(inner, BATCH_NORM)):
            norm.register_forward_pre_hook(_before_norm, with_kwargs=True)
            norm.register_forward_hook(_after_norm)
        if isinstance(network, Wrapped):
            inputs = two_inputs(input_shape, input_kind)
            try:
                network.cut_before_trained(inputs)
                network.mark(inputs)
            except Exception as error:  # whatever it raises with what is added to it
                raise _refusal(f"{network.kind} does not run with what is added to it", error) from error
    if not trains(network.parameters()):
        raise PflError(f"model.network: {network.kind} has no parameters that train; allowed: one or more")
    tensors = {network.own_name(name): tensor for name, tensor in network.state_dict().items()}
    for name in tensors.keys() & pretrained.keys():
        if tensors[name].shape != pretrained[name].shape:
            raise PflError(
                f"model.network: {network.kind} has {name} of shape {tuple(tensors[name].shape)}; the data "
                f"set has pretrained values of shape {tuple(pretrained[name].shape)}"
            )
        tensors[name].copy_(pretrained[name])
    return network


def _made(make: NetworkFactory, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    if isinstance(make, nn.Module) or not callable(make):
        given = type(make).__name__
        raise PflError(f"model.network: {given} is not possible; allowed: a class, or a function that makes a module")
    try:
        return made(make, input_shape, num_classes)
    except PflError:
        raise
    except Exception as error:  # whatever a user's constructor raises
        raise _refusal(f"{unwrap_partial(make).__name__} cannot be made", error) from error


def _wrapped(module: nn.Module, input_shape: tuple[int, ...], num_classes: int, input_kind: InputKind) -> Network:
    """Any module as a network, if it is a classifier for these inputs."""
    if not isinstance(module, nn.Module):
        raise PflError(f"model.network: {type(module).__name__} is not possible; allowed: what makes a torch module")
    for inner in module.modules():
        if getattr(inner, "inplace", False):
            vars(inner)["inplace"] = False  # a layer must not change its inputs, which several steps may use
    inputs = two_inputs(input_shape, input_kind)
    unchanged = inputs.clone()
    try:
        with torch.no_grad():
            outputs = [module.eval()(inputs), deepcopy(module).train()(inputs)]  # lazy layers get their shapes here
            again = module(inputs)
            each = [module(one) for one in inputs.split(1)]
    except Exception as error:  # whatever it raises for inputs that do not fit
        raise _unfit(type(module).__name__, input_shape, error) from error
    check_outputs(module, outputs, num_classes)
    if torch.equal(outputs[0], again) and not torch.allclose(again, torch.cat(each), rtol=1e-2, atol=1e-3):
        raise PflError(
            f"model.network: {type(module).__name__} returns for a sample what depends on others, as BatchNorm without "
            "running statistics does; allowed: outputs of each sample alone in evaluation"
        )
    _mark_constants(module, inputs)
    for inner in module.train().modules():
        vars(inner)["stays_in_eval"] = not inner.training  # by a ``train`` of a user's own
    if not torch.equal(inputs, unchanged):
        raise PflError(f"model.network: {type(module).__name__} changes its inputs in place; allowed: a copy of them")
    return Wrapped(module, inputs, input_kind)


@torch.no_grad()
def _mark_constants(module: nn.Module, inputs: Tensor) -> None:
    """Mark the buffers that a forward pass in training does not move; layers of BatchNorm have others."""
    layers = {path: layer for path, layer in module.named_modules() if not isinstance(layer, BATCH_NORM)}
    held = {path: [name for name, _ in layer.named_buffers(recurse=False)] for path, layer in layers.items()}
    if not any(held.values()):
        return
    moved = deepcopy(module).train()
    moved(inputs)
    for path, names in held.items():
        others = moved.get_submodule(path)
        same = [name for name in names if torch.equal(layers[path].get_buffer(name), others.get_buffer(name))]
        vars(layers[path])[CONSTANTS] = same


def _before_norm(norm: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Use running statistics for a mini-batch with one value per channel, which has no variance."""
    (batch,) = (*arguments, *named.values())
    one = norm.training and batch.numel() == batch.shape[1]
    vars(norm).update(takes_one=one, training=norm.training and not one)


def _after_norm(norm: nn.Module, *_: Any) -> None:
    norm.training = bool(norm.training or norm.takes_one)


def _unfit(kind: str, input_shape: tuple[int, ...], error: Exception) -> PflError:
    """The message for an error that a network raised on inputs of the data's shape."""
    return _refusal(f"{kind} does not take inputs of shape {tuple(input_shape)}", error)


def _refusal(problem: str, error: Exception) -> PflError:
    """The message for an error that a network raised."""
    if is_exhausted(error):
        return PflError(f"model.network: too large for the memory, {one_line(error)}; allowed: a smaller one")
    return PflError(f"model.network: {problem}: {one_line(error)}")
