from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

from pfl_lightning import processes
from pfl_lightning.bounds import PositiveFloat, PositiveInt
from pfl_lightning.client import Examples
from pfl_lightning.data import Round
from pfl_lightning.federation.accounting import Traffic
from pfl_lightning.methods.families.averaging import SharedStatistics, Weighted
from pfl_lightning.models import MLP, start_network
from pfl_lightning.seeding import Key, seed_of
from pfl_lightning.tasks import Task
from pfl_lightning.tree import Params, Tree, prefixed, repeated, select, wide, zeros_like

EMBEDDING = "embedding"
UPDATE = "update"  # prefix of what clients send
# prefixes of the server's part of the hypernetwork
TRUNK = "trunk"
HEADS = "heads"


class PFedHN(Weighted, SharedStatistics):
    """A hypernetwork at the server makes the model of each client from an embedding of the client.

    Rule of a round; the hypernetwork h has an MLP (``trunk``), and for every tensor of the network a linear head, with
    weights W and biases w; phi are all of these, and v_i is the embedding of client i, which the server keeps, too:

        theta_i  = h(v_i; phi) = w + W trunk(v_i)
        theta_i' = SGD for epochs on f_i, from theta_i
        delta_i  = theta_i - theta_i'
        v_i      = v_i - hyper_lr * (d theta_i / d v_i)^T delta_i
        phi      = phi - hyper_lr * sum_i weight_i * (d theta_i / d phi)^T delta_i

    Both moves are from the old v_i and phi. Embeddings and trunk begin at random, w as the network, which can be
    pretrained, and W as zeros, so that all clients begin with the network. Where the trunk's outputs are zeros, it is
    FedAvg with the server's rate ``hyper_lr``. A client receives theta_i and sends delta_i, and never sees h. Clients
    are evaluated with theta_i (``personal``). Those that are new to a finished run train heads on the body of h at the
    mean embedding; without epochs for that (``data.new_head_epochs`` 0) they have theta_i of random embeddings. There
    is no option for sums: the server has to see every delta_i. Statistics of BatchNorm are not made by h. Models are
    not pruned.

    Paper: Shamsian, Navon, Fetaya, Chechik, Personalized Federated Learning using Hypernetworks, ICML 2021,
    arXiv:2103.04628, Algorithm 1.

    Differs: in the paper one client takes part in a round, and W begins at random. The authors' code has momentum,
    weight decay and clipping in the server's step.

    Args:
        hyper_lr: The server's rate, the paper's alpha.
        embedding: Entries of an embedding. Default: 1 and a quarter of the clients.
        width: Width of the trunk's layers.
        layers: Number of its hidden layers.
        kwargs: Options of the bases.
    """

    display_name = "pFedHN"
    eval_models = ("personal",)
    prunes = uploads_models = False

    def __init__(
        self,
        hyper_lr: PositiveFloat = 0.3,
        embedding: PositiveInt | None = None,
        width: PositiveInt = 100,
        layers: PositiveInt = 3,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.hyper_lr = hyper_lr
        self.embedding = embedding
        self.width = width
        self.layers = layers

    def build(
        self, input_shape: tuple[int, ...], task: Task, num_clients: int, seed: int = 0, *args: Any, **kwargs: Any
    ) -> None:
        """Make the network and the trunk, once; see ``Method.build``."""
        shape = (self.embedding or 1 + num_clients // 4,)
        make_trunk = partial(MLP, hidden=(self.width,) * self.layers)
        self.first_trunk = start_network(make_trunk, shape, self.width, seed_of(seed, TRUNK), {}).state_dict()
        super().build(input_shape, task, num_clients, seed, *args, **kwargs)

    def configure_optimizers(self) -> Optimizer:
        """SGD with the server's rate, for w."""
        return SGD(self.network.parameters(), lr=float(self.hyper_lr))

    def server_state(self, tensors: Tree) -> Tree:
        """The trunk (``trunk.*``), and W (``heads.*``), ``[width, ...]``."""
        weights = select(tensors, self.engine.trainable)
        heads = {name: tensor.new_zeros(self.width, *tensor.shape) for name, tensor in weights.items()}
        return {**prefixed(TRUNK, self.first_trunk), **prefixed(HEADS, heads)}

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """Random embeddings, and no update yet: zeros (``update.*``)."""
        generator = torch.Generator().manual_seed(seed)
        size = self.first_trunk["fc1.weight"].shape[1]
        zeros = zeros_like(select(tensors, self.engine.trainable))
        embeddings = torch.randn(num_clients, size, generator=generator).to(next(iter(zeros.values())))
        updates = prefixed(UPDATE, repeated(zeros, num_clients))
        return {**super().initial_state(tensors, num_clients, seed), EMBEDDING: embeddings, **updates}

    def generate(self, phi: Tree, embeddings: Tensor) -> Tree:
        """Generate the models of some clients, ``[clients, ...]``.

        Args:
            phi: w, and the rest as clients receive it (``server.*``).
            embeddings: v, ``[clients, embedding]``.
        """
        hidden = embeddings
        with torch.autocast(embeddings.device.type, enabled=False):  # mixed precision is for the clients' training
            for layer in range(1, self.layers + 2):
                weight, bias = (phi[f"server.{TRUNK}.fc{layer}.{kind}"] for kind in ("weight", "bias"))
                hidden = F.linear(hidden.relu() if layer > 1 else hidden, weight, bias)
            weights = {name: phi[f"server.{HEADS}.{name}"] for name in sorted(self.engine.trainable)}
            return {name: phi[name] + torch.tensordot(hidden, weight, dims=1) for name, weight in weights.items()}

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train theta, and send by how much it has moved."""
        models = self.generate(received.shared, received.own[EMBEDDING])
        trained, losses = super().local_update(cohort, received.with_own(models), key)
        updates = {name: models[name] - trained.own[name] for name in models}
        return trained.without(models).with_own(prefixed(UPDATE, updates)), losses

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Move the participants' embeddings and the hypernetwork."""
        ids = batch.examples.host_ids
        places = (ids % processes.count() == processes.rank()).nonzero()[:, 0]  # whose rows are stored here
        rows = self.clients.gather(ids[places])
        weights = batch.weights[places].to(rows[EMBEDDING])
        phi = select(self.broadcast(), self.engine.trainable | {f"server.{name}" for name in self.server.names})
        with torch.autocast(weights.device.type, enabled=False):
            models, product = torch.func.vjp(self.generate, phi, rows[EMBEDDING])[:2]
            of_phi, of_rows = product({name: wide(weights, t) * rows[f"{UPDATE}.{name}"] for name, t in models.items()})
        slopes = processes.all_reduce(of_phi)
        rows[EMBEDDING] -= self.hyper_lr * of_rows / weights[:, None]
        self.clients.scatter(ids[places], rows)
        for name, tensor in self.server.tree.items():
            tensor.sub_(slopes[f"server.{name}"], alpha=self.hyper_lr)
        moved = {name: tensor - slopes[name] for name, tensor in self.shared_parameters.items()}
        super().server_update({**mean, **moved}, batch)

    def count_traffic(self, batch: Round, up: Traffic, down: Traffic) -> None:
        """Every participant receives its model, and sends an update unless that is dropped."""
        down.add(select(self.network.state_dict(), self.shared), len(batch.participants))
        up.add(self.clients.first(f"{UPDATE}.{name}" for name in self.engine.trainable), len(batch.examples))

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """The model that the hypernetwork generates."""
        return received.with_own(self.generate(received.shared, received.own[EMBEDDING])).select(self.parts["all"])

    def common_body(self) -> Tree:
        """The body of h at the mean embedding."""
        mean = self.clients.mean([EMBEDDING])[EMBEDDING]
        model = {name: rows[0] for name, rows in self.generate(self.broadcast(), mean[None]).items()}
        return select({**super().common_body(), **model}, self.parts["body"])
