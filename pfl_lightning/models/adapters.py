"""Adapters: small tensors that train next to the frozen layers of a network."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pfl_lightning.bounds import ClosedUnitInterval, PositiveFloat, PositiveInt
from pfl_lightning.errors import PflError
from pfl_lightning.models.network import Head, Network
from pfl_lightning.tree import CONSTANTS

KEY = "model.adapter.targets"
ATTENTION = ("*[aA]ttn*.*", "*[aA]ttention*.*")


class LoRA:
    """Low-rank adapters of linear layers: B A trains next to a weight W; all but the adapters and the head is frozen.

        W x + b  becomes  W x + b + alpha / rank * B A x

    A, ``[rank, inputs]``, starts at random and B, ``[outputs, rank]``, at zero, so that the adapted network starts with
    the outputs of the network. All clients share W, so one product serves the samples of all of them. The tensors are
    the layer's ``lora_A`` and ``lora_B``: parts such as ``keeps: "*lora_B"`` name them.

    Paper: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022, arXiv:2106.09685.

    Args:
        rank: Rank of the adapters.
        alpha: Strength of the adapters, which is divided by the rank.
        targets: Names of linear layers to adapt, such as ``*query``: a pattern, or several. Default: those of
            attention, inside of a module with ``attn`` or ``attention`` in its name.
        dropout: Probability of dropping an entry of x in front of A.
        freeze_a: Leave A as it is, so that B alone trains (FFA-LoRA, arXiv:2403.12313).
    """

    def __init__(
        self,
        rank: PositiveInt = 8,
        alpha: PositiveFloat = 16.0,
        targets: str | list[str] | None = None,
        dropout: ClosedUnitInterval = 0.0,
        freeze_a: bool = False,
    ) -> None:
        self.rank = rank
        self.alpha = alpha
        self.targets = targets
        self.dropout = dropout
        self.freeze_a = freeze_a

    @property
    def scale(self) -> float:
        """Factor of B A."""
        return float(self.alpha / self.rank)

    def add_to(self, network: Network, head: Head) -> None:
        """Add adapters to a network in place, and freeze all but them and the head.

        Raises:
            PflError: If no layer is a target, or one of them is in the head.
        """
        network.headless |= network.adapters_alone
        head_names = network.cut(head)[1]
        for module in [*network.modules()]:
            if type(module) is nn.MultiheadAttention and Attention.fits(module):
                Attention.take_over(module)
            if isinstance(module, nn.TransformerEncoder):
                module.use_nested_tensor = False  # which only torch's fused layers take
        layers: list[Any] = [*self._target_layers(network, head_names)]
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and name in head_names)
        for path, module in network.named_modules():
            if not any(name.startswith(f"{path}.") for name in head_names):
                vars(module)[CONSTANTS] = [name for name, _ in module.named_buffers(recurse=False)]
        for layer in layers:
            layer.weight = nn.Parameter(layer.weight.detach(), False)  # or to change it would change layers tied to it
            outputs, inputs = in_its_layout(layer, layer.weight).shape
            layer.lora_A = nn.Parameter(layer.weight.new_empty(self.rank, inputs), not self.freeze_a)
            layer.lora_B = nn.Parameter(layer.weight.new_zeros(outputs, self.rank))
            layer.lora_dropout = nn.Dropout(self.dropout)
            nn.init.kaiming_uniform_(layer.lora_A, a=5**0.5)  # as torch does for the weight of a linear layer
            hook = partial(_add_adapter, self.scale)
            layer.lora_hook = layer.register_forward_hook(hook, with_kwargs=True, prepend=True)  # as part of the layer
        for attention in [each for each in network.modules() if isinstance(each, Attention)]:
            attention.in_proj_weight = attention.in_proj.weight

    @torch.no_grad()
    def merge(self, module: nn.Module) -> nn.Module:
        """Turn adapted layers into plain ones, in place, with the weight W + alpha / rank * B A.

        Returns:
            The module, with the tensors that it had before ``add_to``.
        """
        adapted: list[Any] = [layer for layer in module.modules() if hasattr(layer, "lora_hook")]
        for layer in adapted:
            change = self.scale * layer.lora_B @ layer.lora_A
            layer.weight = nn.Parameter(layer.weight + in_its_layout(layer, change), False)
            layer.lora_hook.remove()
            del layer.lora_A, layer.lora_B, layer.lora_dropout, layer.lora_hook
        for attention in [each for each in module.modules() if isinstance(each, Attention)]:
            attention.hand_back()
        return module

    def _target_layers(self, network: Network, head_names: frozenset[str]) -> list[nn.Linear]:
        """The layers to adapt, none of which is in the head."""
        patterns = [self.targets] if isinstance(self.targets, str) else self.targets or ATTENTION
        layers = {
            f"{path}.{name}".removeprefix("."): layer
            for path, parent in network.named_modules()
            for name, layer in parent.named_children()
            if (isinstance(layer, nn.Linear) or is_transposed(layer))
            and "weight" in dict(layer.named_parameters(recurse=False))  # torch may make it of other tensors
            and type(parent) is not nn.MultiheadAttention  # it does not call them
        }
        names = {path: network.original_name(f"{path}.weight").removesuffix(".weight") for path in layers}
        matches = [path for path, name in names.items() if any(fnmatchcase(name, pattern) for pattern in patterns)]
        head_tensors = {id(parameter) for name, parameter in network.named_parameters() if name in head_names}
        in_head = [path for path, layer in layers.items() if id(layer.weight) in head_tensors]
        wrong = [f"{names[path]} of the head, which trains without adapters" for path in matches if path in in_head]
        if wrong or not matches:
            allowed = ", ".join(names[path] for path in names if path not in in_head) or "none"
            match = wrong[0] if wrong else f"no linear layer of {network.kind}"
            raise PflError(f"{KEY}: {', '.join(patterns)} matches {match}; allowed: patterns of some of {allowed}")
        return list(dict.fromkeys(layers[path] for path in matches))  # one layer may have several paths


def is_transposed(layer: nn.Module) -> bool:
    """Whether a layer is GPT-2's ``Conv1D``: a linear layer whose weight is ``[inputs, outputs]``."""
    kind = type(layer)
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"


def in_its_layout(layer: nn.Module, matrix: Tensor) -> Tensor:
    """A matrix ``[outputs, inputs]`` as a layer has its weight, or the other way around."""
    return matrix.T if is_transposed(layer) else matrix


def both_factors(adapter: LoRA | None, method: str) -> LoRA:
    """The adapters of a method whose clients train A and B; by default ``LoRA``.

    Raises:
        PflError: If A does not train.
    """
    if adapter is not None and adapter.freeze_a:
        raise PflError(f"model.adapter.freeze_a must be false with {method}, whose clients train A and B, got true")
    return adapter or LoRA()


def product(b: Tensor, a: Tensor) -> Tensor:
    """B A, of one layer or of one for each client."""
    with torch.autocast(b.device.type, enabled=False):  # mixed precision must not apply to averages
        return b @ a


def adapted_layers(names: Iterable[str]) -> list[str]:
    """Paths of the layers that are adapted, sorted, given the names of a network's tensors."""
    return sorted(name.removesuffix(".lora_B") for name in names if name.endswith(".lora_B"))


def add_second_adapters(network: Network, scale: float) -> None:
    """Add to each adapted layer a frozen adapter (``rest_A`` and ``rest_B``), and a gate between both (``lora_gate``).

        W x + scale * (g_0 rest_B rest_A x + g_1 B A x),  g = softmax(gate x)

    The frozen one is 0; the gate, ``[2, inputs]``, starts as the weight of a linear layer.

    Args:
        network: The network, with adapters.
        scale: Factor of both products.
    """
    for path in adapted_layers(network.state_dict()):
        layer: Any = network.get_submodule(path)
        layer.register_buffer("rest_A", torch.zeros_like(layer.lora_A))
        layer.register_buffer("rest_B", torch.zeros_like(layer.lora_B))
        layer.lora_gate = nn.Linear(layer.lora_A.shape[1], 2, bias=False).to(layer.weight).weight
        layer.lora_hook.remove()
        layer.lora_hook = layer.register_forward_hook(partial(_add_both, scale), with_kwargs=True, prepend=True)


class Attention(nn.MultiheadAttention):
    """torch's attention with both of its linear layers as modules, ``in_proj`` and ``out_proj``, which it calls."""

    in_proj: Any  # a linear layer

    @classmethod
    def take_over(cls, layer: Any) -> None:
        """Turn torch's attention into this one, in place, wherever it is used."""
        layer.__class__ = cls
        layer.in_proj = nn.Linear(layer.embed_dim, 3 * layer.embed_dim, device="meta")
        layer.in_proj.weight = layer.in_proj_weight
        layer.in_proj.bias = layer.in_proj_bias

    def hand_back(self) -> None:
        """Turn it into torch's attention again, in place."""
        self.in_proj_weight = self.in_proj.weight
        del self.in_proj
        self.__class__ = nn.MultiheadAttention  # type: ignore[assignment]

    @staticmethod
    def fits(layer: nn.MultiheadAttention) -> bool:
        """Whether torch's attention has these two layers, and nothing else."""
        return layer.in_proj_weight is not None and layer.bias_k is None and not layer.add_zero_attn

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """The outputs, as torch's attention has them, without its weights."""
        inputs = (query, key, value)
        projected = {id(tokens): self.in_proj(tokens) for tokens in inputs}  # once for self-attention
        parts = [projected[id(tokens)].chunk(3, -1)[number] for number, tokens in enumerate(inputs)]
        if not self.batch_first:
            parts = [part.transpose(0, 1) for part in parts]
        queries, keys, values = (part.unflatten(2, (self.num_heads, -1)).transpose(1, 2) for part in parts)
        masks = []
        if attn_mask is not None:  # [queries, keys], or one for each sample and head
            masks.append(attn_mask if attn_mask.ndim == 2 else attn_mask.unflatten(0, (-1, self.num_heads)))
        if key_padding_mask is not None:  # [batch, keys]
            masks.append(key_padding_mask[:, None, None])
        mask = reduce(torch.add, (_additive_mask(part, query.dtype) for part in masks)) if masks else None
        attended = F.scaled_dot_product_attention(queries, keys, values, mask, self.dropout * self.training)
        outputs = self.out_proj(attended.transpose(1, 2).flatten(2))
        return outputs if self.batch_first else outputs.transpose(0, 1), None


def _additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask that is added to scores; a boolean one is True where there is no attention."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else mask


def _add_adapter(
    scale: float, layer: Any, inputs: tuple[Tensor, ...], options: dict[str, Tensor], output: Tensor
) -> Tensor:
    """Add what the adapter of a layer computes: a hook, which torch's fused layers heed, unlike a subclass."""
    # the scale multiplies the fewest numbers here, also in the backward pass
    (x,) = (*inputs, *options.values())
    return output + F.linear(scale * F.linear(layer.lora_dropout(x), layer.lora_A), layer.lora_B)


def _add_both(
    scale: float, layer: Any, inputs: tuple[Tensor, ...], options: dict[str, Tensor], output: Tensor
) -> Tensor:
    """Add what two adapters of a layer compute, as much of each as the gate says: they are one of twice the rank."""
    (x,) = (*inputs, *options.values())
    rest, own = F.softmax(F.linear(x, layer.lora_gate), -1).split(1, -1)
    x = layer.lora_dropout(x)
    hidden = torch.cat([rest * F.linear(x, layer.rest_A), own * F.linear(x, layer.lora_A)], -1)
    return output + F.linear(scale * hidden, torch.cat([layer.rest_B, layer.lora_B], 1))
