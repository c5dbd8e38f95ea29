"""Other ways to run our round, tried beside it; what pays on a GPU could become a part of the package.

Each is a function of a workload and its clients. Except for ``bf16``, which is our round as it is, all run many clients
at once by autograd, also with BatchNorm if the clients have as many samples.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.training import MAKERS, Ours
from benchmarks.workloads import RandomClients, Workload
from pfl_lightning.client.backends import Batched
from pfl_lightning.client.layers import has_layers, layers_without_vmap
from pfl_lightning.errors import PflError
from pfl_lightning.tree import BATCH_NORM, Params, Tree

COMPILER = "inductor"  # of torch.compile


class Bf16(Ours):
    """Our round in mixed precision, as ``--trainer.precision bf16-mixed`` runs it."""

    def __init__(self, workload: Workload, data: RandomClients) -> None:
        super().__init__(workload, data, "auto")

    def turn(self) -> None:
        """The rounds that are measured together."""
        with torch.autocast(self.data.device.type, torch.bfloat16):
            super().turn()


def vmapped(workload: Workload, data: RandomClients) -> Ours:
    """``vmap`` of everything, which runs the convolutions of several clients as one with groups."""
    return run_by(Batched(), workload, data)


def grouped(workload: Workload, data: RandomClients) -> Ours:
    """Convolutions with a group for each client, whose channels stay beside each other between the layers."""
    ours = run_by(Grouped(), workload, data)
    layers = {type(layer) for layer in ours.method.network.children()}
    if nn.Conv2d not in layers or not layers <= {nn.Conv2d, nn.MaxPool2d, nn.ReLU, nn.Flatten, nn.Linear}:
        raise PflError("variants: grouped is not possible with this network; allowed: plain convolutions, as in LeNet5")
    return ours


def unfolded(workload: Workload, data: RandomClients) -> Ours:
    """Convolutions as products of matrices, of the pixels under the kernel at each place."""
    ours = run_by(Batched(), workload, data)
    layers = [layer for layer in ours.method.network.modules() if type(layer) is nn.Conv2d]
    if not layers:
        raise PflError("variants: unfolded is not possible with this network; allowed: one with convolutions")
    for layer in layers:
        layer.__class__ = UnfoldedConv2d
    return ours


def compiled(workload: Workload, data: RandomClients) -> Ours:
    """The pass through the network and back by ``torch.compile``."""
    return run_by(Compiled(), workload, data)


def graphs(workload: Workload, data: RandomClients) -> Ours:
    """The pass through the network and back as CUDA graphs."""
    if data.device.type != "cuda":
        raise PflError(f"variants: graphs is not possible on {data.device.type}; allowed: with --accelerator gpu")
    ours = run_by(Graphs(), workload, data)
    if has_layers(ours.method.network, BATCH_NORM, ours.method.network.state_dict()):
        raise PflError("variants: graphs is not possible with BatchNorm; allowed: layers that change nothing in place")
    return ours


VARIANTS = {
    "bf16": Bf16,
    "vmapped": vmapped,
    "grouped": grouped,
    "unfolded": unfolded,
    "compiled": compiled,
    "graphs": graphs,
}
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


class Grouped(Batched):
    """Many clients at once, by convolutions with groups."""

    def forward(self, network: nn.Module, params: Params, inputs: Tensor) -> Tensor:
        """One call of each layer for all clients."""
        layers = dict(network.named_children())
        if nn.Conv2d not in map(type, layers.values()):
            return super().forward(network, params, inputs)
        clients = len(inputs)
        tensors = {**{name: t.expand(clients, *t.shape) for name, t in params.shared.items()}, **params.own}
        hidden = inputs.transpose(0, 1).flatten(1, 2)  # [batch, clients * channels, height, width]
        for name, layer in layers.items():
            if isinstance(layer, nn.Conv2d):
                weight, bias = tensors[f"{name}.weight"].flatten(0, 1), tensors[f"{name}.bias"].flatten()
                hidden = F.conv2d(hidden, weight, bias, layer.stride, layer.padding, layer.dilation, clients)
            elif isinstance(layer, nn.Flatten):
                hidden = hidden.unflatten(1, (clients, -1)).transpose(0, 1).flatten(2)  # [clients, batch, features]
            elif isinstance(layer, nn.Linear):
                bias, weight = tensors[f"{name}.bias"][:, None], tensors[f"{name}.weight"]
                hidden = torch.baddbmm(bias, hidden, weight.mT)
            else:
                hidden = layer(hidden)
        return hidden


class UnfoldedConv2d(nn.Conv2d):
    """A convolution as a product of matrices."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding, stride = int(self.padding[0]), self.stride[0]
        columns = F.unfold(input, self.kernel_size, self.dilation, padding, stride)  # [batch, inputs * kernel, places]
        height = (input.shape[-2] + 2 * padding - self.dilation[0] * (self.kernel_size[0] - 1) - 1) // stride + 1
        outputs: Tensor = (weight.flatten(1) @ columns).unflatten(-1, (height, -1))
        return outputs if bias is None else outputs + bias[:, None, None]


class Compiled(Batched):
    """Many clients at once, compiled once for every part of the network and for its shapes."""

    def __init__(self) -> None:
        super().__init__()
        torch.compiler.reset()  # what other workloads have had compiled counts towards a limit
        self.compiled = torch.compile(super().forward, backend=COMPILER)

    def forward(self, network: nn.Module, params: Params, inputs: Tensor) -> Tensor:
        """One call of the compiled function."""
        outputs: Tensor = self.compiled(network, params, inputs)
        return outputs


class Graphs(Batched):
    """Many clients at once; the kernels are recorded once for every part of the network and for its shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: dict[object, Any] = {}  # a function of the inputs and tensors, for each kind of them

    def forward(self, network: nn.Module, params: Params, inputs: Tensor) -> Tensor:
        """Play the record for these tensors; where no gradient is wanted there is none."""
        tensors = params.tree
        moving = [tensor for tensor in tensors.values() if tensor.requires_grad]
        if not moving:
            return super().forward(network, params, inputs)
        arguments = (inputs, *tensors.values())
        kind = (*tensors, *((argument.shape, argument.dtype, argument.requires_grad) for argument in arguments))
        if kind not in self.recorded:

            def passed(inputs: Tensor, *rows: Tensor) -> Tensor:
                named: Tree = dict(zip(tensors, rows, strict=True))
                parts = ({name: named[name] for name in part} for part in params)
                return Batched.forward(self, network, Params(*parts), inputs)

            samples = tuple(each.detach().clone().requires_grad_(each.requires_grad) for each in arguments)
            self.recorded[kind] = torch.cuda.make_graphed_callables(passed, samples, allow_unused_input=True)
        outputs: Tensor = self.recorded[kind](*arguments)
        return outputs
