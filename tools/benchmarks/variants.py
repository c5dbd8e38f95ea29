"""Other ways to run our round, tried beside it; what pays on a GPU could become a part of the package.

Each is a function of a workload and its clients. Except for ``bf16``, which is our round as it is, all run many clients
at once by autograd, also with BatchNorm if the clients have as many samples.
"""

import torch
from torch import Tensor, nn

from benchmarks.training import MAKERS, Maker, Ours
from benchmarks.workloads import RandomClients, Workload
from pfl_lightning.client.backends import Batched
from pfl_lightning.client.layers import has_layers, layers_without_vmap
from pfl_lightning.errors import PflError
from pfl_lightning.tree import BATCH_NORM, Params

COMPILER = "inductor"  # of torch.compile


class Bf16(Ours):
    """Our round in mixed precision, as ``--trainer.precision bf16-mixed`` runs it."""

    def __init__(self, workload: Workload, data: RandomClients) -> None:
        super().__init__(workload, data, "auto")

    def turn(self) -> object:
        """The rounds that are measured together."""
        with torch.autocast(self.data.device.type, torch.bfloat16):
            return super().turn()


def vmapped(workload: Workload, data: RandomClients) -> Ours:
    """``vmap`` of everything, which runs the convolutions of several clients as one with groups."""
    return run_by(Batched(), workload, data)


def compiled(workload: Workload, data: RandomClients) -> Ours:
    """The pass through the network and back by ``torch.compile``."""
    return run_by(Compiled(COMPILER), workload, data)


def graphs(workload: Workload, data: RandomClients) -> Ours:
    """The pass through the network and back as CUDA graphs."""
    if data.device.type != "cuda":
        raise PflError(f"variants: graphs is not possible on {data.device.type}; allowed: with --accelerator gpu")
    return run_by(Compiled("cudagraphs"), workload, data)


VARIANTS: dict[str, Maker] = {"bf16": Bf16, "vmapped": vmapped, "compiled": compiled, "graphs": graphs}
MAKERS.update(VARIANTS)


def run_by(backend: Batched, workload: Workload, data: RandomClients) -> Ours:
    """Our round with a backend for all layers.

    Raises:
        PflError: If many clients at once would not do the same work.
    """
    ours = Ours(workload, data, "auto")
    network = ours.method.network
    if layers := layers_without_vmap(network):
        raise PflError(f"variants: vmap is not possible with {', '.join(layers)}; allowed: other layers")
    if has_layers(network, BATCH_NORM, network.state_dict()) and len(set(workload.counts())) > 1:
        raise PflError("variants: BatchNorm is not possible with clients of several sizes; allowed: of one size")
    ours.method.engine.backend = lambda *_: backend  # type: ignore[method-assign]
    return ours


class Compiled(Batched):
    """Many clients at once, compiled once for every part of the network and for its shapes."""

    def __init__(self, compiler: str) -> None:
        super().__init__()
        torch.compiler.reset()  # what other workloads have had compiled counts towards a limit
        self.compiled = torch.compile(super().forward, backend=compiler)

    def forward(self, network: nn.Module, params: Params, inputs: Tensor) -> Tensor:
        """One call of the compiled function."""
        outputs: Tensor = self.compiled(network, params, inputs)
        return outputs
