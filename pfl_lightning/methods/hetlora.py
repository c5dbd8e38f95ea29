from typing import Any

import torch
from torch import Tensor

from pfl_lightning.bounds import ROUNDING, Share
from pfl_lightning.client import Examples
from pfl_lightning.data import Round
from pfl_lightning.federation.accounting import Traffic
from pfl_lightning.federation.client_states import all_rows
from pfl_lightning.methods.families.averaging import ServerOptimized
from pfl_lightning.methods.families.ranked import Adapters, Ranked
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree, movable, wide
from pfl_lightning.uplink import BITS

RANK = "rank"  # of each client
NORM = "product_norm"  # of its adapters
LEAST = 1e-10  # what norms have added, so that they may all be 0


class HetLoRA(Ranked, ServerOptimized):
    """Adapters of unequal ranks, padded with zeros and averaged by their norms; clients cut what they do not need.

    Rule of a round; r_i is the rank of client i, at first number i of ``ranks`` modulo their number, and A[:r] are the
    first r rows:

        (B_i, A_i) = local optimizer for epochs on f_i, from (B[:, :r_i], A[:r_i])
        k    = max(1, floor(decay * r_i))
        r_i  = k and cut B_i, A_i, if sum |B_i[:, k:]| |A_i[k:]| has fallen  # over layers
        s_i  = sqrt(sum over layers of |B_i A_i|^2)
        A    = A - server_lr * (A - sum_i s_i * A_i / sum_i s_i)  # and B likewise

    with A_i and B_i padded by zeros. The head trains too, and its mean is plain. Clients are evaluated with the largest
    rank (``global``), and with the first r_i rows (``personal``). If all ranks are that of the adapter, all s_i are
    equal and ``decay`` is 1, it is FedIT with uniform weights. Clients send and receive what they hold, and send s_i.
    Models are not pruned.

    Paper: Cho, Liu, Xu, Fahrezi, Joshi, Heterogeneous LoRA for Federated Fine-tuning of On-Device Foundation Models,
    EMNLP 2024, arXiv:2401.06432.

    Differs: local training lacks the paper's penalty on what may be cut. All products count alpha / rank with the rank
    of the whole adapter. Rows that no participant holds stay as they were: as zeros they could not train again.

    Args:
        decay: Share of a rank that stays after a cut, rounded down; with 1 ranks stay.
        kwargs: Options of the bases.
    """

    weighting = "uniform"
    uploads = (NORM,)

    def __init__(self, decay: Share = 0.99, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.decay = decay

    def build(self, *args: Any, **kwargs: Any) -> None:
        """Make the network, and find what clients of each rank hold of its tensors; see ``Method.build``."""
        super().build(*args, **kwargs)
        self.corners = self.corners_of(range(1, self.full_rank + 1))

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """The clients' ranks."""
        ranks = torch.tensor(self.ranks, device=next(iter(tensors.values())).device)
        ranks = ranks[torch.arange(num_clients, device=ranks.device) % len(ranks)]
        return {**super().initial_state(tensors, num_clients, seed), RANK: ranks}

    def kinds(self, ids: Tensor) -> Tensor:
        """See ``Nested.kinds``: by rank, from 1 on."""
        return self.clients.gather(ids)[RANK] - 1

    def training_step(self, batch: Round, batch_idx: int) -> None:
        """A round, before which clients have the ranks by which they receive."""
        self.received_kinds = all_rows(self.clients.stack(RANK), self.num_clients).cpu()[batch.participants] - 1
        super().training_step(batch, batch_idx)

    def count_traffic(self, batch: Round, up: Traffic, down: Traffic) -> None:
        """Each participant receives what it then holds."""
        self.count_received(self.received_kinds, down)

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train, cut the adapters, and weigh what is uploaded of them by its norm."""
        ranks = received.own[RANK]
        shorter = (self.decay * ranks.double() + ROUNDING).long().clamp(min=1)
        before = norms_beyond(shorter, self.adapters(self.corner(received, cohort.ids).own))
        trained, losses = super().local_update(cohort, received, key)
        ranks = torch.where(norms_beyond(shorter, self.adapters(trained.own)) < before, shorter, ranks)
        masks = self.masks(ranks - 1)
        held = {name: trained.own[name] * masks[name] for name in sorted(self.parts["*lora_*"])}
        norms = norms_of_products(self.adapters(held)) + LEAST
        weighted = {name: wide(norms, tensor) * tensor for name, tensor in held.items()}
        bits = {BITS + name: each for name, each in self.bits_of_adapters(ranks - 1, held).items()}
        return trained.with_own({**weighted, **bits, NORM: norms, RANK: ranks}), losses

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Divide by the sum of the norms; what nobody holds stays."""
        target = dict(mean)
        for path, (a, b) in self.adapters(movable(self.network)).items():
            is_held = mean[f"{path}.lora_A"].any(1)
            target[f"{path}.lora_A"] = torch.where(is_held[:, None], mean[f"{path}.lora_A"] / mean[NORM], a)
            target[f"{path}.lora_B"] = torch.where(is_held, mean[f"{path}.lora_B"] / mean[NORM], b)
        super().server_update(target, batch)


def norms_beyond(ranks: Tensor, adapters: Adapters) -> Tensor:
    """What a cut depends on: the products of the norms of A and B beyond some ranks, added up over layers."""
    products = []
    for a, b in adapters.values():
        beyond = torch.arange(a.shape[1], device=a.device) >= ranks[:, None]
        norms = [part.flatten(1).norm(dim=1) for part in (a * beyond[:, :, None], b * beyond[:, None])]
        products.append(norms[0] * norms[1])
    return torch.stack(products).sum(0)


def norms_of_products(adapters: Adapters) -> Tensor:
    """Norms of some clients' products B A over all layers, ``[clients]``."""
    squares = [((b.mT @ b) * (a @ a.mT)).sum((1, 2)) for a, b in adapters.values()]  # the products would be large
    return torch.stack(squares).sum(0).clamp(min=0).sqrt()
