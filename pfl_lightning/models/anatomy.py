"""What a module does with a batch: which modules run, in which order, and which of them are the end of it."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Call:
    """A call of a module.

    Attributes:
        arguments: Its arguments, each with its version: how often it had been changed in place.
        output: What it returned, with its version.
    """

    arguments: list[tuple[Any, int]]
    output: tuple[Any, int]


@dataclass
class Anatomy:
    """What a module did with a batch in training mode.

    Attributes:
        output: What it returned.
        calls: The calls of each module inside, by its path, in the order in which these ended.
    """

    output: Any = None
    calls: dict[str, list[Call]] = field(default_factory=dict)

    @classmethod
    def of(cls, module: nn.Module, inputs: Tensor) -> "Anatomy":
        """Watch a copy of a module, so that no running statistics change."""
        found, copy = cls(), deepcopy(module).train()
        for path, inner in copy.named_modules():
            inner.register_forward_hook(lambda _, *call, path=path: found._note(path, *call), with_kwargs=True)
        with torch.no_grad():
            found.output = copy(inputs)
        return found

    def _note(self, path: str, arguments: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
        earlier = self.calls.pop(path, [])  # so that the order is that of the last calls
        given = [_versioned(argument) for argument in (*arguments, *options.values())]
        self.calls[path] = [*earlier, Call(given, _versioned(output))]

    def units(self, module: nn.Module) -> list[str]:
        """The innermost modules that ran and hold parameters themselves, in the order of their last calls."""
        holders = [path for path in self.calls if any(True for _ in module.get_submodule(path).parameters(False))]
        around = {outer for path in holders for outer in _around(path)}
        return [path for path in holders if path not in around]

    def layers(self, path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        """Split a module into layers that run one after another, and leave an ``Identity`` where one was.

        Args:
            path: Path of the module, which was called once.
            module: The module.

        Yields:
            The layers by their paths; first what is left of the module, unless that does nothing.
        """
        (call,) = self.calls[path]
        chain = self._chain(path, module, call.output)
        parts = [(inner, getattr(module, inner.rpartition(".")[2])) for inner in chain]
        if chain:
            parts[-1:] = self.layers(*parts[-1])
        for inner in chain:
            if inner in dict(parts):
                setattr(module, inner.rpartition(".")[2], nn.Identity())
        if not chain or not _same(self.calls[chain[0]][0].arguments[0], call.arguments[0]):
            yield path, module
        yield from parts

    def _chain(self, path: str, module: nn.Module, passed: tuple[Any, int]) -> list[str]:
        """The paths of the children with which a module ends: each takes what the one before it returned, alone."""
        found: list[str] = []
        children = {_inside(path, name) for name, _ in module.named_children()}
        for inner in reversed([inner for inner in self.calls if inner in children]):
            calls = self.calls[inner]
            if len(calls) != 1 or len(calls[0].arguments) != 1 or not _same(calls[0].output, passed):
                break
            found.insert(0, inner)
            (passed,) = calls[0].arguments
        return found


def _versioned(value: Any) -> tuple[Any, int]:
    return value, value._version if isinstance(value, Tensor) else 0


def _same(one: tuple[Any, int], other: tuple[Any, int]) -> bool:
    """Whether two values are one object, which has not been changed in place from the one moment to the other."""
    return one[0] is other[0] and one[1] == other[1]


def _around(path: str) -> list[str]:
    """The paths of the modules that a module is in."""
    steps = path.split(".") if path else []
    return [".".join(steps[:depth]) for depth in range(len(steps))]


def _inside(path: str, name: str) -> str:
    return f"{path}.{name}".lstrip(".")
