"""A network with its initial weights."""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any, cast

import torch
from torch import Tensor, nn

from pfl_lightning.errors import PflError
from pfl_lightning.models.factory import Architectures, NetworkFactory, make_module, network_errors
from pfl_lightning.models.network import InputKind, Network, num_outputs, trains, two_inputs
from pfl_lightning.models.wrapped import Wrapped, are_tied
from pfl_lightning.seeding import seed_of
from pfl_lightning.tree import BATCH_NORM, CONSTANTS


def start_network(*arguments: Any, **options: Any) -> Network:
    """Make the only network of a factory; see ``start_networks``."""
    return cast(Network, start_networks(*arguments, **options)[0])


def start_networks(
    factory: NetworkFactory,
    input_shape: tuple[int, ...],
    num_classes: int,
    seed: int,
    pretrained: Mapping[str, Tensor],
    input_kind: InputKind = "numbers",
    extend: Callable[[Network], None] | None = None,
    output_shape: tuple[int, ...] | None = None,
) -> Architectures:
    """Make networks, whose initial weights depend on the seed but not on the state of torch's generator.

    Args:
        factory: Makes the network, which may be any module, or ``Architectures`` of several.
        input_shape: Shape of one input.
        num_classes: Number of classes.
        seed: Seed of the initial weights.
        pretrained: Pretrained tensors by name; names that the network does not have are ignored.
        input_kind: The kind of the inputs.
        extend: Adds modules to the new network.
        output_shape: Shape of the outputs for one input. Default: a number for each class.

    Raises:
        PflError: If the network cannot be made or does not fit the inputs, the classes or the memory, or if a
            pretrained tensor does not fit the network.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, "network"))
        made = make_module(factory, input_shape, num_classes, output_shape or (num_classes,))
        architectures = made if isinstance(made, Architectures) else Architectures.of(made)
        for place, module in enumerate(architectures):
            inputs = two_inputs(input_shape, input_kind)
            with network_errors(f"{type(module).__name__} does not take inputs of shape {tuple(input_shape)}"):
                network = _as_network(module, inputs, output_shape or (num_classes,), input_kind)
            if extend is not None:
                extend(network)
            for norm in network.modules():
                if isinstance(norm, BATCH_NORM):
                    norm.register_forward_pre_hook(_before_norm, with_kwargs=True)
                    norm.register_forward_hook(_after_norm)
            if isinstance(network, Wrapped):
                with network_errors(f"{network.kind} does not run with the adapters or layers added to it"):
                    network.split_frozen_blocks(inputs)
                    network.mark_layers(inputs)
            _take_pretrained(network, pretrained)
            architectures[place] = network
    return architectures


def _take_pretrained(network: Network, pretrained: Mapping[str, Tensor]) -> None:
    """Copy a data set's pretrained tensors into a network."""
    if not trains(network.parameters()):
        raise PflError(f"model.network: {network.kind} has no parameters that train")
    tensors = {network.original_name(name): tensor for name, tensor in network.state_dict().items()}
    for name in tensors.keys() & pretrained.keys():
        if tensors[name].shape != pretrained[name].shape:
            raise PflError(
                f"model.network: {network.kind} has {name} of shape {tuple(tensors[name].shape)}; the data "
                f"set has pretrained values of shape {tuple(pretrained[name].shape)}"
            )
        tensors[name].copy_(pretrained[name])


def _as_network(module: nn.Module, inputs: Tensor, output_shape: tuple[int, ...], input_kind: InputKind) -> Network:
    """A module as a network, if it has such outputs for these inputs."""
    name = f"model.network: {type(module).__name__}"
    if isinstance(module, Network) and not are_tied([*module.children()]):
        if module.takes == input_kind:  # which is refused elsewhere
            with torch.no_grad():
                _check_outputs(name, [module.eval()(inputs)], output_shape)
            module.train()
        _mark_constants(module, inputs)
        return module
    for inner in module.modules():
        if getattr(inner, "inplace", False):
            vars(inner)["inplace"] = False  # a layer must not change its inputs, which several steps may use
    original_inputs = inputs.clone()
    with torch.no_grad():
        outputs = module.eval()(inputs)  # lazy layers get their shapes here
        training_outputs = deepcopy(module).train()(inputs)
        repeated_outputs = module(inputs)
        single_outputs = [module(row) for row in inputs.split(1)]
    _check_outputs(name, (outputs, training_outputs), output_shape)
    is_random = not torch.equal(outputs, repeated_outputs)
    if not is_random and not torch.allclose(repeated_outputs, torch.cat(single_outputs), rtol=1e-2, atol=1e-3):
        raise PflError(
            f"{name} returns in evaluation what depends on the other samples of a batch, as BatchNorm without running "
            "statistics does; a sample's outputs must depend on that sample alone"
        )
    _mark_constants(module, inputs)
    for inner in module.train().modules():
        vars(inner)["stays_in_eval"] = not inner.training  # if the user's own ``train`` says so
    if not torch.equal(inputs, original_inputs):
        raise PflError(f"{name} must not change its inputs in place")
    return Wrapped(module, inputs, input_kind)


def _check_outputs(name: str, outputs: Iterable[Any], shape: tuple[int, ...]) -> None:
    """Check that outputs for two inputs have a shape each; for two classes of a sample one number is enough."""
    shapes = dict.fromkeys((shape, (num_outputs(shape[0]),) if len(shape) == 1 else shape))
    for output in outputs:
        is_tensor = isinstance(output, Tensor) and output.is_floating_point()
        if not is_tensor or (len(output), tuple(output.shape[1:])) not in [(2, each) for each in shapes]:
            allowed = " or ".join(f"a tensor of numbers [batch, {', '.join(map(str, each))}]" for each in shapes)
            allowed += ", as UNet does" * (len(shape) == 3)
            raise PflError(f"{name} must return {allowed}, got {_described(output)}")


def _described(output: Any) -> str:
    if isinstance(output, Tensor):
        return f"a tensor {['batch', *output.shape[1:]]} of {output.dtype}".replace("'", "").replace("torch.", "")
    return f"a {type(output).__name__}" + (f" with {', '.join(map(str, output))}" if isinstance(output, dict) else "")


@torch.no_grad()
def _mark_constants(module: nn.Module, inputs: Tensor) -> None:
    """Mark the buffers that a forward pass in training does not move; layers of BatchNorm have others."""
    buffers = {path: dict(layer.named_buffers(recurse=False)) for path, layer in module.named_modules()}
    paths = [path for path in buffers if buffers[path] and not isinstance(module.get_submodule(path), BATCH_NORM)]
    if not paths:
        return
    trained = deepcopy(module).train()
    trained(inputs)
    for path in paths:
        after = trained.get_submodule(path)
        constants = [name for name, buffer in buffers[path].items() if torch.equal(buffer, after.get_buffer(name))]
        vars(module.get_submodule(path))[CONSTANTS] = constants


def _before_norm(norm: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Use running statistics for a mini-batch with one value per channel, which has no variance."""
    (batch,) = (*arguments, *options.values())
    has_one_value = batch.numel() == batch.shape[1]
    vars(norm).update(resumes_training=norm.training and has_one_value, training=norm.training and not has_one_value)


def _after_norm(norm: nn.Module, *_: Any) -> None:
    norm.training = bool(norm.training or norm.resumes_training)
