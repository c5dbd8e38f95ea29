from functools import partial
from typing import Any, cast

import lightning.pytorch as pl
import torch
from torch import Tensor

from pfl_lightning import processes
from pfl_lightning.client import Examples
from pfl_lightning.data import Round
from pfl_lightning.errors import PflError
from pfl_lightning.federation.cohort import Trained
from pfl_lightning.methods import Method, method_of
from pfl_lightning.methods.families.exact_lora import PRODUCTS
from pfl_lightning.models import LoRA, adapted_layers, product
from pfl_lightning.tree import Tree


class AggregationError(pl.Callback):
    """Measures in each round how far the server's adapted layers are from the mean of the clients' ones.

    ``train/aggregation_error`` is, with weights W and adapters B A, which count s = alpha / rank,

        M     = sum_i weight_i * B_i A_i
        error = |M - B' A' - (W' - W) / s| / |M|

    in the Frobenius norm over all adapted layers; A', B' and W' are the server's after the round, and W is that from
    before it. It is 0 up to rounding if M is the mean that the server uses, as in FFA-LoRA, RoLoRA, FedEx-LoRA and
    FLoRA; in FedIT B' A' is the product of the mean factors. It is logged after each round.
    """

    def __init__(self) -> None:
        self._before: Tree = {}  # the weights that the server may change, by the path of the layer
        self._means: dict[int, Tree] = {}  # parts of the mean of the products, by the place of their first client

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check that clients send both factors of adapters, as far as these train.

        Raises:
            PflError: If there are no adapters, or clients keep a factor, or send something else.
        """
        method = method_of(pl_module)
        factors = {f"{path}.{name}" for path in adapted(method) for name in ("lora_A", "lora_B")}
        sends_them = method.uploads_models or PRODUCTS in method.uploads
        if not factors or factors & method.kept or not sends_them or len(method.architectures) > 1:
            raise PflError(
                f"trainer.callbacks: AggregationError is not possible with {type(method).__name__} here; allowed: a "
                "method whose server averages both factors of adapters, such as FedAvg with model.adapter LoRA"
            )

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Round, batch_idx: int
    ) -> None:
        """Look at what clients send in this round."""
        method = method_of(pl_module)
        layers = adapted(method).items()
        self._before = {path: layer.weight.detach().clone() for path, layer in layers if layer.weight.requires_grad}
        self._means = {}
        method.participate = partial(self._participate, method)  # type: ignore[method-assign]

    def _participate(self, method: Method, batch: Round, places: Tensor, cohort: Examples) -> Trained:
        trained = type(method).participate(method, batch, places, cohort)
        weights = batch.weights[places].to(cohort.ids.device, method.engine.dtype)
        self._means[int(places[0])] = {
            path: mean_product(path, layer, trained.upload, weights) for path, layer in adapted(method).items()
        }
        return trained

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Round, batch_idx: int
    ) -> None:
        """Log the error, unless no product is there."""
        method = method_of(pl_module)
        del method.participate
        strength = cast(LoRA, method.adapter).scale
        means, lacking = {}, {}
        for path, layer in adapted(method).items():
            means[path] = sum((part[path] for part in self._means.values()), start=torch.zeros_like(layer.weight))
        means = processes.all_reduce(means)
        for path, layer in adapted(method).items():
            moved = layer.weight - self._before.get(path, layer.weight)
            lacking[path] = means[path] - product(layer.lora_B, layer.lora_A) - moved / strength
        if size := norm(means):
            method.log("train/aggregation_error", norm(lacking) / size)


def adapted(method: Method) -> dict[str, Any]:
    """The layers with adapters, by their paths."""
    return {path: method.network.get_submodule(path) for path in adapted_layers(method.parts["all"])}


def mean_product(path: str, layer: Any, upload: Tree, weights: Tensor) -> Tensor:
    """The part of some clients, with weights ``[clients]``, in the mean of B A of a layer, ``[outputs, inputs]``."""
    if (products := upload.get(f"{PRODUCTS}.{path}")) is not None:
        return torch.einsum("c,coi->oi", weights, products)
    shape = (len(weights), -1, -1)
    a, b = (upload.get(f"{path}.{name}", getattr(layer, name).expand(shape)) for name in ("lora_A", "lora_B"))
    stacked = (weights[:, None, None] * b).transpose(0, 1).flatten(1)  # [outputs, clients * rank]
    return product(stacked, a.flatten(0, 1))


def norm(tree: Tree) -> float:
    """Norm of all numbers."""
    return float(torch.stack([tensor.square().sum() for tensor in tree.values()]).sum().sqrt())
