from typing import Any

import torch
from torch import Tensor

from pfl_lightning.client import Examples
from pfl_lightning.data import Round
from pfl_lightning.methods.families.averaging import Weighted
from pfl_lightning.methods.families.ranked import Ranked
from pfl_lightning.models import product
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree, movable
from pfl_lightning.uplink import BITS

PRODUCTS = "products"  # prefix of the uploads


class FlexLoRA(Weighted, Ranked):
    """Adapters of unequal ranks, whose products are averaged; each client gets the best approximation of its rank.

    Rule of a round; client i has rank r_i, number i of ``ranks`` modulo their number, and A[:r] are the first r rows:

        (B_i, A_i) = local optimizer for epochs on f_i, from (B[:, :r_i], A[:r_i])
        M = sum_i weight_i * B_i A_i = U S V'        # of each layer; the largest values first
        B = U S,  A = V'

    The head trains too and is averaged. Clients are evaluated with the largest rank (``global``), and with the first
    r_i components (``personal``). If the rank of the adapter is at least that of M, B A is the mean of the products,
    and otherwise the nearest matrix of its rank. Clients send and receive factors of their rank; in secure sums they
    send the products. Models are not pruned.

    Paper: Bai, Chen, Qian, Yao, Li, Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and Client
    Resources, NeurIPS 2024, arXiv:2402.11505, with FedAvg.

    Differs: all products count alpha / rank with the rank of the whole adapter, where the paper's code has alpha / r_i.
    Of each row of A the entry of the largest size is positive. Where a singular value is 0 but for rounding, the row of
    A stays as it was, and the column of B is 0.

    Args:
        kwargs: Options of the bases.
    """

    uploads = (PRODUCTS,)

    def build(self, *args: Any, **kwargs: Any) -> None:
        """Make the network, and find what clients of each rank hold of its tensors; see ``Method.build``."""
        super().build(*args, **kwargs)
        self.corners = self.corners_of(self.ranks)

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train what each client holds, and upload the products of the adapters in their place."""
        trained, losses = super().local_update(cohort, received, key)
        bits = self.bits_of_adapters(self.kinds(cohort.ids), trained.own)
        uploads = {}
        for path, (a, b) in self.adapters(trained.own).items():
            uploads[f"{PRODUCTS}.{path}"] = product(b, a)
            uploads[f"{BITS}{PRODUCTS}.{path}"] = bits[f"{path}.lora_A"] + bits[f"{path}.lora_B"]
        return trained.without(self.parts["*lora_*"]).with_own(uploads), losses

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Factor the mean of the products."""
        target = dict(mean)
        for path, (a, _) in self.adapters(movable(self.network)).items():
            target[f"{path}.lora_A"], target[f"{path}.lora_B"] = factors(target.pop(f"{PRODUCTS}.{path}"), a)
        super().server_update(target, batch)


def factors(product: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """A and B for the largest singular values of a product, in falling order; see ``FlexLoRA``.

    Args:
        product: ``[outputs, inputs]``.
        a: A so far, ``[rank, inputs]``.

    Examples:
        >>> a, b = factors(torch.tensor([[0.0, -3.0], [2.0, 0.0]]), torch.ones(1, 2))
        >>> a.tolist(), b.tolist()
        ([[0.0, 1.0]], [[-3.0], [0.0]])
    """
    u, values, v = torch.linalg.svd(product.double(), full_matrices=False)
    largest = v.gather(1, v.abs().argmax(1, keepdim=True))
    signs = torch.where(largest < 0, -1.0, 1.0).to(v)
    least = values[0] * max(product.shape) * torch.finfo(product.dtype).eps
    rank = min(len(a), int((values > least).sum()))
    new_a = torch.cat([(signs * v)[:rank].to(a), a[rank:]])
    new_b = product.new_zeros(len(product), len(a))
    new_b[:, :rank] = (u * values * signs[:, 0])[:, :rank]
    return new_a, new_b
