"""Pretrained weights: read from a file, copied into a network, and left out of checkpoints where they stay frozen."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pfl_lightning.data.reading import read_tensors, reading
from pfl_lightning.errors import PflError
from pfl_lightning.federation.checkpoints import Content, refusal
from pfl_lightning.models import LoRA, Network
from pfl_lightning.models.peft_folder import PeftTensors, read_peft
from pfl_lightning.paths import expand_home
from pfl_lightning.server import unpack_tensors
from pfl_lightning.tree import Tree, digest, movable, prefixed, select

KEY = "model.pretrained"
BASE = "frozen_base"  # entry of a checkpoint with the digest of what it leaves out
WITHIN = ("state_dict", "model")  # keys under which training programs save the tensors
PREFIXES = ("", "network.", "model.", "module.")  # of the names in checkpoints of ours, of Lightning and of wrappers
SHOWN = 4  # names in a line


def read_weights(file: str, adapter: LoRA | None) -> Tree:
    """Read tensors by name; other values, such as epoch counters, are ignored.

    Args:
        file: What ``torch.save`` has written: a module's ``state_dict``, or a checkpoint that has it under
            ``state_dict`` or ``model``; or a folder of adapters that ``peft`` or ``pfl export`` has written.
        adapter: The adapters of the network.

    Raises:
        PflError: If it cannot be read, or holds anything but plain values and tensors.
    """
    path = expand_home(file, KEY)
    if path.is_dir():
        with reading(path, "write it with save_pretrained of peft, or with pfl export RUN FOLDER --as peft", key=KEY):
            return read_peft(path, adapter)
    with reading(path, "write it with torch.save(module.state_dict(), file)", key=KEY):
        content = _content(path)
        for key in WITHIN:
            content = content[key] if isinstance(content.get(key), Mapping) else content
        return unpack_tensors({name: value for name, value in content.items() if isinstance(value, Tensor | tuple)})


def _content(path: Path) -> Mapping[str, Any]:
    content = read_tensors(path)
    if isinstance(content, Mapping) and BASE in content:
        raise ValueError("a checkpoint without the frozen weights that its run was given")
    if not isinstance(content, Mapping):
        raise ValueError(f"a {type(content).__name__} instead of tensors by name")
    return content


@torch.no_grad()
def take_weights(network: Network, weights: Tree, head: frozenset[str], file: str) -> str:
    """Copy the tensors of a file into a network, in place.

    They have the names of the user's module or those of the network, all of them perhaps after one of ``PREFIXES``. The
    tensors of the head stay as they are where they have other shapes, such as for other classes.

    Args:
        network: The network.
        weights: The tensors of the file.
        head: Names of the head's tensors.
        file: Name of the file.

    Returns:
        A line that says how many tensors are from the file, and which are not.

    Raises:
        PflError: If no tensor has a name of the network's, or one that is not of the head does not fit.
    """
    if isinstance(weights, PeftTensors):
        weights.check(network, head, f"{KEY}: '{file}'")
    tensors = network.state_dict()
    named = max(_namings(network, weights), key=len)
    fitting = {name: tensor for name, tensor in named.items() if _fits(tensor, tensors[name])}
    for name in sorted(named.keys() - fitting.keys() - head):
        actual, expected = (f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in (named[name], tensors[name]))
        alias = network.original_name(name)
        raise PflError(f"{KEY}: '{file}' has {alias} of {actual}; allowed: {expected}, as {network.kind} has")
    if not fitting:
        names = _listed(map(network.original_name, tensors))
        raise PflError(f"{KEY}: '{file}' has nothing for {network.kind}; allowed: a file with some of {names}")
    for name, tensor in fitting.items():
        tensors[name].copy_(tensor)
    network.pretrained |= fitting.keys()
    report = f"{KEY}: {len(fitting)} of the {len(tensors)} tensors of {network.kind} are from '{file}'"
    fresh = [network.original_name(name) for name in tensors if name not in fitting]
    return f"{report}; new: {_listed(fresh)}" if fresh else report


def leave_base_out(checkpoint: Content, network: Network) -> None:
    """Replace the frozen tensors that came from a file or the network's folder by their digest."""
    if base := _frozen_base(network):
        checkpoint[BASE] = digest(base)
        for name in base:
            del checkpoint["state_dict"][f"network.{name}"]


def put_base_back(
    checkpoint: Content, network: Network, file: str | None, adapter: LoRA | None, head: frozenset[str]
) -> None:
    """Add the frozen tensors that a checkpoint leaves out.

    Args:
        checkpoint: The checkpoint.
        network: The network, which has those of its folder.
        file: The file that has them, if there is one.
        adapter: The adapters of the network.
        head: Names of the head's tensors.

    Raises:
        PflError: If the file cannot be read, or they are others than those of the checkpoint's run.
    """
    if BASE not in checkpoint:
        return
    if file is not None:
        take_weights(network, read_weights(file, adapter), head, file)
    base = _frozen_base(network)
    if digest(base) != checkpoint[BASE]:
        what = "the frozen weights are not those of the run, which its checkpoint leaves out"
        raise refusal(checkpoint, f"{what}; allowed: {KEY} or model.network as they were")
    checkpoint["state_dict"] |= prefixed("network", base)


def _frozen_base(network: Network) -> Tree:
    moving = {tensor.data_ptr() for tensor in movable(network).values()}
    tensors = select(network.state_dict(), network.pretrained)
    return {name: tensor for name, tensor in tensors.items() if tensor.data_ptr() not in moving}


def _namings(network: Network, weights: Tree) -> Iterator[Tree]:
    """The tensors of a file that the network has, by its names, for each way to name them."""
    for prefix in PREFIXES:
        for naming in (network.original_name, str):
            aliases = {name: f"{prefix}{naming(name)}" for name in network.state_dict()}
            yield {name: weights[alias] for name, alias in aliases.items() if alias in weights}


def _fits(saved: Tensor, tensor: Tensor) -> bool:
    return saved.shape == tensor.shape and saved.is_floating_point() == tensor.is_floating_point()


def _listed(names: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    names = list(names)
    more = len(names[SHOWN:])
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more else "")
