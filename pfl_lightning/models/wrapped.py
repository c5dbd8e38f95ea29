import warnings
from collections import Counter
from collections.abc import Collection, Iterable
from copy import deepcopy
from functools import partial
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call, vmap

from pfl_lightning.models.network import InputKind, Network, trains
from pfl_lightning.tree import BATCH_NORM, Tree, movable


class Wrapped(Network):
    """Any module as layers: the chain of modules that it ends with, such as its head, and the rest.

    The last modules become layers of their own, as in ``nn.Sequential``, as long as each takes nothing but what the one
    before it returned. The rest is one layer with the name of the module's class. Users still choose and see the
    module's own names, as for ``head``.

    Args:
        module: The module, which becomes part of the network.
        inputs: A batch of two inputs.
        takes: The kind of its inputs.
    """

    def __init__(self, module: nn.Module, inputs: Tensor, takes: InputKind) -> None:
        whole, paths = deepcopy(module), layer_paths(module.train())  # what training alone does is traced too
        layers = _taken_out(module, paths)
        if not _same(whole, layers, inputs) or are_tied(layers):
            module, paths, layers = whole, [""], [whole]
        self._paths = {path.replace(".", "_") or type(module).__name__: path for path in paths}
        super().__init__(dict(zip(self._paths, layers, strict=True)))
        self._units, self._shell, self.takes = _units(whole, inputs), (module,), takes
        given = getattr(whole, "given", frozenset[str]())
        self.given = frozenset(name for name in self.state_dict() if self.own_name(name) in given)
        self.train()

    @torch.no_grad()
    def cut_before_trained(self, inputs: Tensor) -> None:
        """Make the blocks before the first that trains a layer of their own, given a batch of two inputs.

        The engine then computes them once a phase. What is behind them needs the inputs too, such as for a mask.
        """
        (name, rest), *others = self.named_children()
        if (place := _first_trained_block(rest)) is None:
            return
        try:
            front, back = _cut(rest, *place, inputs)
        except Exception:  # for example, the module reads an attribute of a block
            return
        if _same(rest, [front, back], inputs[:1]):
            given = {self.own_name(each) for each in self.given}
            path = self._paths[f"{name}_front"] = self._paths[name]
            if path:
                self._shell[0].set_submodule(path, rest)  # whole again; the two have its tensors
            super().__init__({f"{name}_front": front, name: back, **dict(others)})
            self.given = frozenset(each for each in self.state_dict() if self.own_name(each) in given)

    @torch.no_grad()
    def mark(self, inputs: Tensor) -> None:
        """Mark the layers for the engine, given a batch of two inputs.

        They get ``runs_alone`` if ``vmap`` cannot run them for several clients at once, and ``draws_at_random`` if they
        are random in training mode beyond torch's own dropout layers.
        """
        for layer in self:
            marks = {"runs_alone": not _runs_for_many(layer, inputs), "draws_at_random": _draws(layer, inputs)}
            vars(layer).update(marks)
            inputs = layer.eval()(inputs)
        self.train()

    @property
    def kind(self) -> str:
        """Name of the module's class."""
        return type(self._shell[0]).__name__

    @property
    def units(self) -> list[str]:
        """The innermost modules with parameters of their own that train, in the order in which they run."""
        return self._units

    def own_name(self, name: str) -> str:
        """The module's name of a tensor."""
        layer, _, rest = name.partition(".")
        return _joined(self._paths[layer], rest)

    def module_with(self, tensors: Tree) -> nn.Module:
        """A module of the user's class with these tensors, ``[...]`` each, under the network's names."""
        copy = deepcopy(self)
        (module,) = copy._shell
        for layer, path in self._paths.items():
            if path and type(module.get_submodule(path)) is nn.Identity:  # it was taken out
                module.set_submodule(path, copy.get_submodule(layer))
        module.load_state_dict({self.own_name(name): tensor for name, tensor in tensors.items()}, strict=False)
        return module.to(next(copy.parameters()).device)


class _Outline(fx.Tracer):
    """Traces what a module does with the modules inside it, but not what those do."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def layer_paths(module: nn.Module, path: str = "") -> list[str]:
    """Paths of the layers that a module can be cut into, in the order in which they run.

    Args:
        module: The module. It is one layer if torch cannot trace it because its code branches on its inputs.
        path: Its own path, which stands for the rest of it without the layers inside.
    """
    options = signature(module.forward).parameters.items()
    defaults = {name: option.default for name, option in options if option.default is not Parameter.empty}
    try:
        nodes = list(_Outline().trace(module, defaults).nodes)
    except Exception:
        return [path]
    calls = Counter(node.target for node in nodes)
    node, chain = nodes[-1].args[0], list[str]()
    while isinstance(node, fx.Node) and node.op == "call_module" and calls[node.target] == 1:
        if len(node.users) > 1 or len(node.args) != 1 or node.kwargs:
            break
        chain.insert(0, str(node.target))
        node = node.args[0]
    inside = [*chain[:-1], *(layer_paths(module.get_submodule(chain[-1]), chain[-1]) if chain else [])]
    is_rest = not (isinstance(node, fx.Node) and node.op == "placeholder")
    beside = [name for name in module.state_dict() if not name.startswith(tuple(f"{child}." for child in chain))]
    return [path] * bool(is_rest or beside) + [_joined(path, name) for name in inside]


def _taken_out(module: nn.Module, paths: list[str]) -> list[nn.Module]:
    """The modules at these paths; a module inside another one leaves an ``Identity`` in its place."""
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


class _Absent(nn.Module):
    """In the place of a block that is elsewhere: passes the hidden state on."""

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        """The hidden state before the block."""
        return hidden


def _cut(module: nn.Module, path: str, first: int, inputs: Tensor) -> list[nn.Module]:
    """A module as two with the same tensors: until its block number ``first``, and from there on.

    What goes from one to the other is a row for each sample: its inputs, and the hidden state before the block.
    """
    tensors = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    front, back = (deepcopy(module, dict(tensors)) for _ in range(2))
    for number, _ in enumerate(module.get_submodule(path).children()):
        (back if number < first else front).set_submodule(f"{path}.{number}", _Absent())
    last, stop = back.get_submodule(f"{path}.{first - 1}"), front.get_submodule(f"{path}.{first}")
    stop.register_forward_hook(_hold)
    front.eval()(inputs)
    back.register_forward_pre_hook(partial(_unpacked, f"{path}.{first - 1}", inputs, vars(stop).pop("held")))
    last.register_forward_hook(_release)
    front.register_forward_hook(partial(_packed, f"{path}.{first}"))
    return [front, back]


def _hold(block: nn.Module, _: Any, hidden: Tensor) -> None:
    vars(block)["held"] = hidden


def _release(block: nn.Module, *_: Any) -> Tensor:
    hidden: Tensor = vars(block).pop("held")
    return hidden


def _packed(path: str, front: nn.Module, inputs: tuple[Tensor], _: Any) -> Tensor:
    hidden = _release(front.get_submodule(path))
    exact = torch.promote_types(inputs[0].dtype, torch.float32)  # in bfloat16 tokens above 256 are others
    return torch.cat([inputs[0].flatten(1).to(exact), hidden.flatten(1)], 1)


def _unpacked(path: str, inputs: Tensor, hidden: Tensor, back: nn.Module, rows: tuple[Tensor]) -> Tensor:
    first, rest = rows[0].split([inputs[0].numel(), hidden[0].numel()], 1)
    kind = next(back.parameters()).dtype
    _hold(back.get_submodule(path), (), torch.unflatten(rest, 1, hidden.shape[1:]).to(kind))
    return torch.unflatten(first, 1, inputs.shape[1:]).to(inputs.dtype)


@torch.no_grad()
def _same(whole: nn.Module, layers: Iterable[nn.Module], inputs: Tensor) -> bool:
    """Whether the layers in sequence do the same as the whole module."""
    expected = whole.eval()(inputs)
    try:
        return torch.equal(nn.Sequential(*layers).eval()(inputs), expected)
    except Exception:  # for example, the module accesses its last layer
        return False


def are_tied(layers: Collection[nn.Module]) -> bool:
    """Whether two layers have a tensor in common that moves; each would be run with one of its own."""
    return sum(len(movable(layer)) for layer in layers) > len(movable(nn.Sequential(*layers)))


@torch.no_grad()
def _units(module: nn.Module, inputs: Tensor) -> list[str]:
    """The innermost modules with parameters of their own that train, by their last calls in training mode."""
    copy, ran = deepcopy(module).train(), list[str]()
    for path, inner in copy.named_modules():
        if trains(inner.parameters(recurse=False)):
            layer = path.partition(".parametrizations.")[0]  # what these tensors make is a layer's
            inner.register_forward_hook(lambda *_, path=layer: ran.append(path))
    copy(inputs)
    last_calls = list(dict.fromkeys(reversed(ran)))[::-1]
    around = {path for path in ran for other in ran if other != path and other.startswith(_joined(path, ""))}
    return [path for path in last_calls if path not in around]


def _runs_for_many(layer: nn.Module, inputs: Tensor) -> bool:
    """Whether ``vmap`` can run a layer for two clients: in training mode with gradients, otherwise without."""
    layer = deepcopy(layer)  # it may keep vmap's tensors as attributes
    stacks = {name: torch.stack([tensor] * 2) for name, tensor in movable(layer).items()}
    trained = {name: stack.requires_grad_() for name, stack in stacks.items() if stack.is_floating_point()}

    def client(tensors: Tree, batch: Tensor) -> Tensor:
        outputs: Tensor = functional_call(layer, tensors, batch)
        return outputs

    try:
        for training in (True, False):
            layer.train(training)
            for norm in (each for each in layer.modules() if isinstance(each, BATCH_NORM)):
                norm.train(training and trains(norm.parameters()))  # frozen ones use their running statistics
            with torch.set_grad_enabled(training), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # each comes again if it is so run
                vmap(client, randomness="different")({**stacks, **trained}, torch.stack([inputs] * 2))
    except Exception:  # whatever torch raises for code that depends on data, fused layers and the like
        return False
    return True


def _draws(layer: nn.Module, inputs: Tensor) -> bool:
    """Whether a layer draws random numbers in training mode, beyond torch's own dropout layers."""
    before, layer = torch.get_rng_state(), deepcopy(layer).train()
    for dropout in (each for each in layer.modules() if isinstance(each, nn.Dropout)):
        dropout.eval()
    layer(inputs)
    return not torch.equal(before, torch.get_rng_state())


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
