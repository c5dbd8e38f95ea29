import torch
from torch import nn

from pfl_lightning.data import Round
from pfl_lightning.methods.families.exact_lora import ExactLoRA
from pfl_lightning.models import Part
from pfl_lightning.seeding import seed_of
from pfl_lightning.tree import Tree, select


class FLoRA(ExactLoRA):
    """Adapters that begin anew in each round: the server adds the mean of their products to the frozen weights.

    Rule of a round; adapters of low rank add s B A to the weights W, s = alpha / rank, and h is the head:

        (A_i, B_i, h_i) = local optimizer for epochs on f_i(W, .), from (A, B, h)
        W = W + s * sum_i weight_i * B_i A_i
        h = sum_i weight_i * h_i
        A = random, the same for all clients;  B = 0

    The sum is one product of stacked factors, [B_1 ... B_n] and [weight_1 * A_1; ...; weight_n * A_n], which is what
    clients receive, beside h. After a first round W is FedEx-LoRA's W + s B A. Clients are evaluated with the shared
    model (``global``).

    Paper: Wang, Shen, He, Sun, Wang, Lyu, Li, FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous
    Low-Rank Adaptations, NeurIPS 2024, arXiv:2409.05976.

    Differs: all clients have adapters of the same rank, and begin a round with the same A.
    """

    sent: Part = "head"

    def rank_of_change(self, uploads: int) -> int:
        """See ``ExactLoRA``."""
        return uploads * self.rank

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Begin with new adapters."""
        tensors = self.network.state_dict()
        zeros = {name: torch.zeros_like(tensors[name]) for name in self.parts["*lora_B"]}
        drawn = {}
        for name, tensor in select(tensors, self.parts["*lora_A"]).items():
            source = torch.Generator().manual_seed(seed_of(batch.seed, "flora", batch.round_index, name))
            a = torch.empty(tensor.shape, dtype=tensor.dtype)
            drawn[name] = nn.init.kaiming_uniform_(a, a=5**0.5, generator=source).to(tensor)
        super().server_update({**mean, **zeros, **drawn}, batch)
