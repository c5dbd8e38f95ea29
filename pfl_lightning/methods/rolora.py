from typing import Any

from torch import Tensor

from pfl_lightning.client import Examples
from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.methods.families.fine_tuned import FineTuned
from pfl_lightning.models import both_factors
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params


class RoLoRA(FineTuned, Averaging):
    """FedIT whose clients train one factor of the adapters at a time: B in one round, A in the next.

    Rule of a round; B A are the adapters, and h is the head:

        in the first round, the third and so on:
            (B_i, h_i) = local optimizer for epochs on f_i(A, .), from (B, h)
            B = B - server_lr * (B - sum_i weight_i * B_i)
        in the others:
            (A_i, h_i) = local optimizer for epochs on f_i(B, .), from (A, h)
            A = A - server_lr * (A - sum_i weight_i * A_i)
        h = h - server_lr * (h - sum_i weight_i * h_i)

    Clients upload the factor that they train, and the head. With a server_lr of 1 the mean of their products B_i A_i is
    the new B A, as it is in FFA-LoRA, whose round the first one is, and both factors learn. Clients are evaluated with
    the shared model (``global``).

    Paper: Chen, Guo, Ju, Dalal, Zhu, Khisti, Robust Federated Finetuning of LLMs via Alternating Optimization of LoRA,
    NeurIPS 2025, arXiv:2502.01755.

    Differs: participants receive both factors, as they may have missed the last round.
    """

    needs = ("rounds",)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.adapter = both_factors(self.adapter, type(self).__name__)

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train the factor whose turn it is, and the head."""
        factor = "*lora_A" if self.accounting.clock.rounds % 2 else "*lora_B"
        return self.engine.train(cohort, received, self.phase(f"head|{factor}"), (*key, self.trains))
