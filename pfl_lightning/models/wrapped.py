"""Any module as a network: cut into layers, with marks that tell the engine how to run them."""

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from copy import deepcopy
from functools import partial
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call, vmap

from pfl_lightning.models.network import InputKind, Network, copy_with_same_tensors, trains
from pfl_lightning.tree import BATCH_NORM, Tree, movable


class Wrapped(Network):
    """Any module as layers: the chain of modules that it ends with, such as its head, and the rest.

    The last modules become separate layers, as in ``nn.Sequential``, as long as a module takes nothing but the output
    of the module before it. The rest is one layer with the name of the module's class. Users still choose and see the
    names in the original module, as for ``head``.

    Args:
        module: The module, which becomes part of the network.
        inputs: A batch of two inputs.
        takes: The kind of its inputs.
    """

    def __init__(self, module: nn.Module, inputs: Tensor, takes: InputKind) -> None:
        original = deepcopy(module)
        paths = layer_paths(module.train())  # traced in training mode, which may do more
        layers = _extract(module, paths)
        if not _compute_the_same(original, layers, inputs) or are_tied(layers):
            module = original
            paths = [""]
            layers = [original]
        self._paths = {path.replace(".", "_") or type(module).__name__: path for path in paths}
        super().__init__(dict(zip(self._paths, layers, strict=True)))
        self._trainable_layers = _layers_run(original, inputs, trains)
        with_parameters: list[str] = _layers_run(original, inputs, _has_any)
        last = with_parameters[-1] if with_parameters else ""
        self.frozen_output = "" if trains(original.get_submodule(last).parameters()) else last
        own = [name for name in movable(original) if name.startswith(_joined(last, ""))]
        self.headless = not (self.frozen_output or own)  # its tensors are those of a layer before it
        self.adapters_alone = getattr(original, "adapters_alone", False)
        self._skeleton = (module,)  # in a tuple, so that it is no submodule; its layers are those of the network
        self.takes = takes
        self._set_pretrained(getattr(original, "pretrained", frozenset[str]()))
        self.train()

    def _set_pretrained(self, original_names: Collection[str]) -> None:
        self.pretrained = frozenset(name for name in self.state_dict() if self.original_name(name) in original_names)

    @torch.no_grad()
    def split_frozen_blocks(self, inputs: Tensor) -> None:
        """Make the blocks before the first that trains a separate layer, given a batch of two inputs.

        The engine then computes it once a phase. The layer behind it gets the inputs too, such as for a mask.
        """
        (name, rest), *later = self.named_children()
        place = _first_trained_block(rest)
        if place is None:
            return
        try:
            front, back = _split(rest, *place, inputs)
        except Exception:  # for example, the module reads an attribute of a block
            return
        if _compute_the_same(rest, [front, back], inputs[:1]):
            pretrained = {self.original_name(tensor) for tensor in self.pretrained}
            path = self._paths[name]
            self._paths[f"{name}_front"] = path
            if path:
                self._skeleton[0].set_submodule(path, rest)  # with all blocks; front and back share its tensors
            super().__init__({f"{name}_front": front, name: back, **dict(later)})
            self._set_pretrained(pretrained)

    @torch.no_grad()
    def mark_layers(self, inputs: Tensor) -> None:
        """Mark the layers for the engine, given a batch of two inputs.

        They get ``without_vmap`` if ``vmap`` cannot run them for several clients at once, and ``draws_at_random`` if
        they are random in training mode beyond torch's own dropout layers.
        """
        for layer in self:
            without_vmap = not _supports_vmap(layer, inputs)
            vars(layer).update(without_vmap=without_vmap, draws_at_random=_is_random(layer, inputs))
            inputs = layer.eval()(inputs)
        self.train()

    @property
    def kind(self) -> str:
        """Name of the module's class."""
        return type(self._skeleton[0]).__name__

    @property
    def trainable_layers(self) -> list[str]:
        """The innermost modules with parameters that train, in the order in which they run."""
        return self._trainable_layers

    def original_name(self, name: str) -> str:
        """The name of a tensor in the user's module."""
        layer, _, rest = name.partition(".")
        return _joined(self._paths[layer], rest)

    def module_with(self, tensors: Tree) -> nn.Module:
        """A module of the user's class with these tensors, ``[...]`` each, under the network's names."""
        copy = deepcopy(self)
        (module,) = copy._skeleton
        for layer, path in self._paths.items():
            if path and type(module.get_submodule(path)) is nn.Identity:  # its place, see ``_extract``
                module.set_submodule(path, copy.get_submodule(layer))
        module.load_state_dict({self.original_name(name): tensor for name, tensor in tensors.items()}, strict=False)
        return module.to(next(copy.parameters()).device)


class _ShallowTracer(fx.Tracer):
    """Traces the calls of the modules inside a module, but nothing inside of these."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def layer_paths(module: nn.Module, path: str = "") -> list[str]:
    """Paths of the layers that a module can be cut into, in the order in which they run.

    Args:
        module: The module. It is one layer if torch cannot trace it because its code branches on its inputs.
        path: Path of the module, which stands for the rest of it without the layers inside.
    """
    options = signature(module.forward).parameters.items()
    defaults = {name: option.default for name, option in options if option.default is not Parameter.empty}
    try:
        nodes = list(_ShallowTracer().trace(module, defaults).nodes)
    except Exception:
        return [path]
    calls = Counter(node.target for node in nodes)
    node = nodes[-1].args[0]
    chain: list[str] = []
    while isinstance(node, fx.Node) and node.op == "call_module" and calls[node.target] == 1:
        if len(node.users) > 1 or len(node.args) != 1 or node.kwargs:
            break
        chain.insert(0, str(node.target))
        node = node.args[0]
    inside = [*chain[:-1], *(layer_paths(module.get_submodule(chain[-1]), chain[-1]) if chain else [])]
    computes_more = not (isinstance(node, fx.Node) and node.op == "placeholder")
    has_more_tensors = not all(name.startswith(tuple(f"{child}." for child in chain)) for name in module.state_dict())
    return [path] * (computes_more or has_more_tensors) + [_joined(path, name) for name in inside]


def _extract(module: nn.Module, paths: list[str]) -> list[nn.Module]:
    """The modules at these paths; one inside another module leaves an ``Identity`` in its place."""
    layers: list[nn.Module] = []
    for path in reversed(paths):
        layers.insert(0, module.get_submodule(path))
        if path:
            module.set_submodule(path, nn.Identity())
    return layers


def _first_trained_block(module: nn.Module) -> tuple[str, int] | None:
    """Path of a list of blocks outside of which nothing trains, and the number of the first of them that trains."""
    names = list(movable(module))
    for path, blocks in module.named_modules():
        if isinstance(blocks, nn.ModuleList | nn.Sequential) and all(name.startswith(f"{path}.") for name in names):
            trained = [bool(movable(block)) for block in blocks]
            if True in trained[1:] and not trained[0]:
                return path, trained.index(True)
    return None


class _Placeholder(nn.Module):
    """In the place of a block that is elsewhere: passes the hidden state on, unless it was given another one."""

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        """The hidden state before the block."""
        state: Tensor = vars(self).pop("hidden", hidden)
        return state


class _Recorder(nn.Module):
    """In the place of the first block behind the front: keeps the hidden state before it."""

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        """The hidden state before the block."""
        vars(self)["hidden"] = hidden
        return hidden


def _split(module: nn.Module, path: str, first: int, inputs: Tensor) -> list[nn.Module]:
    """A module as two with the same tensors: until its block number ``first``, and from there on.

    A row for each sample goes from one to the other: its inputs, and the hidden state before the block.
    """
    front = copy_with_same_tensors(module)
    back = copy_with_same_tensors(module)
    for number, _ in enumerate(module.get_submodule(path).children()):
        (back if number < first else front).set_submodule(f"{path}.{number}", _Placeholder())
    recorder = _Recorder()
    front.set_submodule(f"{path}.{first}", recorder)
    front.eval()(inputs)
    front.register_forward_hook(partial(_pack, f"{path}.{first}"))
    back.register_forward_pre_hook(partial(_unpack, f"{path}.{first - 1}", inputs, vars(recorder).pop("hidden")))
    return [front, back]


def _pack(path: str, front: nn.Module, inputs: tuple[Tensor], _: Any) -> Tensor:
    hidden = vars(front.get_submodule(path)).pop("hidden")
    exact = torch.promote_types(inputs[0].dtype, torch.float32)  # in bfloat16 tokens above 256 are others
    return torch.cat([inputs[0].flatten(1).to(exact), hidden.flatten(1)], 1)


def _unpack(path: str, inputs: Tensor, hidden: Tensor, back: nn.Module, rows: tuple[Tensor]) -> Tensor:
    input_row, hidden_row = rows[0].split([inputs[0].numel(), hidden[0].numel()], 1)
    hidden_state = torch.unflatten(hidden_row, 1, hidden.shape[1:]).to(next(back.parameters()).dtype)
    vars(back.get_submodule(path))["hidden"] = hidden_state
    return torch.unflatten(input_row, 1, inputs.shape[1:]).to(inputs.dtype)


@torch.no_grad()
def _compute_the_same(module: nn.Module, layers: Iterable[nn.Module], inputs: Tensor) -> bool:
    """Whether the layers in sequence return what the module returns."""
    expected = module.eval()(inputs)
    try:
        return torch.equal(nn.Sequential(*layers).eval()(inputs), expected)
    except Exception:  # for example, the module accesses its last layer
        return False


def are_tied(layers: Collection[nn.Module]) -> bool:
    """Whether two layers share a tensor that moves; cut apart, each would train a copy of it."""
    return sum(len(movable(layer)) for layer in layers) > len(movable(nn.Sequential(*layers)))


@torch.no_grad()
def _has_any(parameters: Iterable[nn.Parameter]) -> bool:
    return next(iter(parameters), None) is not None


def _layers_run(module: nn.Module, inputs: Tensor, counts: Callable[[Iterable[nn.Parameter]], bool]) -> list[str]:
    """The innermost modules whose own parameters count, by their last calls in training mode."""
    copy = deepcopy(module).train()
    calls: list[str] = []
    for path, inner in copy.named_modules():
        if counts(inner.parameters(recurse=False)):
            layer = path.partition(".parametrizations.")[0]  # these tensors make a weight of the layer
            inner.register_forward_hook(lambda *_, path=layer: calls.append(path))
    copy(inputs)
    last_calls = list(dict.fromkeys(reversed(calls)))[::-1]
    containers = {outer for outer in calls for path in calls if path != outer and path.startswith(_joined(outer, ""))}
    return [path for path in last_calls if path not in containers]


def _supports_vmap(layer: nn.Module, inputs: Tensor) -> bool:
    """Whether ``vmap`` can run a layer for two clients: in training mode with gradients, otherwise without."""
    layer = deepcopy(layer)  # it may keep vmap's tensors as attributes
    stacks = {name: torch.stack([tensor] * 2) for name, tensor in movable(layer).items()}
    for stack in stacks.values():
        stack.requires_grad_(stack.is_floating_point())

    def client(tensors: Tree, batch: Tensor) -> Tensor:
        outputs: Tensor = functional_call(layer, tensors, batch)
        return outputs

    try:
        for training in (True, False):
            layer.train(training)
            for norm in layer.modules():
                if isinstance(norm, BATCH_NORM):
                    norm.train(training and trains(norm.parameters()))  # frozen ones use their running statistics
            with torch.set_grad_enabled(training), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it is shown again if the layer is run in this way
                vmap(client, randomness="different")(stacks, torch.stack([inputs] * 2))
    except Exception:  # whatever torch raises for code that depends on data, fused layers and the like
        return False
    return True


def _is_random(layer: nn.Module, inputs: Tensor) -> bool:
    """Whether a layer draws random numbers in training mode, beyond torch's own dropout layers."""
    layer = deepcopy(layer).train()
    for dropout in layer.modules():
        if isinstance(dropout, nn.Dropout):
            dropout.eval()
    state = torch.get_rng_state()
    layer(inputs)
    return not torch.equal(state, torch.get_rng_state())


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
