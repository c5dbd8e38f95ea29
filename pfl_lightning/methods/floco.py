from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pfl_lightning import processes
from pfl_lightning.bounds import NonNegativeFloat, PositiveInt
from pfl_lightning.client import Examples
from pfl_lightning.client.layers import part
from pfl_lightning.data import Round
from pfl_lightning.federation.accounting import Traffic
from pfl_lightning.federation.client_states import all_rows
from pfl_lightning.methods.families.averaging import ServerOptimized, SharedStatistics, Weighted
from pfl_lightning.models import ExtendedLinear, Network, Part
from pfl_lightning.seeding import Key, uniforms
from pfl_lightning.server import principal_coordinates, spread_on_simplex
from pfl_lightning.tree import Params, Tree, prefixed, repeated, select, wide, zeros_like

CHANGE = "change"  # prefix of how far a client moved the endpoints in its last round
REGION = "region"  # whether a client has taken part, 1, and whether it has a region, 2
POINT = "point"  # of each sample: the point where a mini-batch trains that begins with it


class Floco(Weighted, ServerOptimized, SharedStatistics):
    """FedAvg whose head is a simplex of linear layers, in which each client gets a small region.

    Rule of a round; W_m are the endpoints, head(a) has the weight sum_m a_m W_m, w are body and endpoints, and c_i is
    the centre of client i's region; s, uniform on the simplex, and r, uniform on [0, radius], are drawn for each
    mini-batch:

        a   = s in the first uniform_rounds
              c_i + min(1, r / |s - c_i|_1) (s - c_i) later
        w_i = SGD for epochs on f_i with head(a), from w
        w   = w - server_lr * (w - sum_i weight_i * w_i)

    Once, after uniform_rounds, the clients that have taken part so far get regions; d_i is how far all W_m moved in the
    last round of client i:

        p_i = the first coordinates of d_i by PCA, one for each endpoint
        c_i = the point of the simplex nearest to p_i / z

    z is that of 1000 scales, up to the largest coordinate, at which the sum of |c_i - c_j|^-2 over all pairs is least.
    Clients without a region go on with s. Clients are evaluated at c_i, or if they have no region at the centre of the
    simplex (``stored``), and at that centre (``global``). With one endpoint it is FedAvg. The server has to see each
    d_i, so that there is no option for sums, and takes time quadratic in the number of clients.

    Paper: Grinwald, Wiesner, Nakajima, Federated Learning over Connected Modes, NeurIPS 2024, arXiv:2403.03333.

    Differs: in the paper all clients train in the round before the regions. In the authors' code r goes in any
    direction, so that a may leave the simplex, and scales are between 0 and 1, whatever the coordinates are.

    Args:
        endpoints: Number of endpoints, the paper's M.
        uniform_rounds: Rounds before the regions, the paper's tau.
        radius: Largest distance of a from c_i, the sum of absolute differences; the paper's rho.
        kwargs: Options of the bases.
    """

    keeps: Part = "*.centre"
    needs = ("features", "rounds")
    prunes = False
    eval_models = ("stored", "global")

    def __init__(
        self,
        endpoints: PositiveInt = 10,
        uniform_rounds: PositiveInt = 10,
        radius: NonNegativeFloat = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.endpoints = endpoints
        self.uniform_rounds = uniform_rounds
        self.radius = radius

    def extend_network(self, network: Network) -> None:
        """Add the other endpoints, and the point of the simplex."""
        network.linear_head(network.cut(self.head)[1], alone=True)
        network.extend_head(self.head, lambda layer: SimplexLinear(layer, self.endpoints))

    @property
    def head_path(self) -> str:
        """Path of the linear layer that is the head."""
        return self.network.linear_head(self.parts["head"])

    @property
    def endpoint_names(self) -> list[str]:
        """Names of the tensors that are the endpoints."""
        return [f"{self.head_path}.weight", f"{self.head_path}.others"]

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """The centre of the simplex for all, and no change of the endpoints yet (``change.*``)."""
        changes = prefixed(CHANGE, zeros_like(select(tensors, self.endpoint_names)))
        none = tensors[f"{self.head_path}.weight"].new_zeros(())
        own = repeated({**changes, REGION: none}, num_clients)
        return {**super().initial_state(tensors, num_clients, seed), **own}

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train at random points, and note how far the endpoints moved."""
        start = received.with_own({POINT: self.points(cohort, received, key)})
        phase = replace(self.phase("all"), feature_loss=self.losses_at_point, sample_rows=(POINT,))
        trained, losses = self.engine.train(cohort, start, phase, (*key, "all"))
        changes = {name: trained.own[name] - received.tree[name] for name in self.endpoint_names}
        own = {**prefixed(CHANGE, changes), REGION: received.own[REGION].clamp(min=1)}
        return trained.without((POINT,)).with_own(own), losses

    def points(self, cohort: Examples, received: Params, key: Key) -> Tensor:
        """A point of the simplex for each sample, ``[cohort, samples, endpoints]``."""
        numbers = uniforms((*key, POINT), cohort.ids, cohort.longest * (1 + self.endpoints))
        numbers = numbers.unflatten(1, (cohort.longest, -1))
        lengths = -(numbers[..., 1:] * (1 - 2**-20) + 2**-21).log()
        points = lengths / lengths.sum(2, keepdim=True)
        centre = received.own[f"{self.head_path}.centre"].double()[:, None]
        away = points - centre
        shares = self.radius * numbers[..., 0] / away.abs().sum(2).clamp(min=torch.finfo(away.dtype).tiny)
        inside = centre + shares.clamp(max=1)[..., None] * away
        return torch.where(wide(received.own[REGION] == 2, points), inside, points).to(self.engine.dtype)

    def losses_at_point(self, outputs: Tensor, features: Tensor, targets: Tensor, extras: Tree) -> Tensor:
        """The loss of each sample of a client, ``[batch]``; see ``Phase.feature_loss``."""
        head = part(self.network, self.engine.body_layers())
        tensors = {**select(extras, head.state_dict()), f"{self.head_path}.centre": extras[POINT][0]}
        return self.sample_losses(functional_call(head, tensors, features), targets)

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Take the step of FedAvg, and once set the regions."""
        super().server_update(mean, batch)
        if batch.round_index + 1 < self.uniform_rounds:
            return
        regions = all_rows(self.clients.stack(REGION), self.num_clients)
        if (regions < 2).all():
            ids = regions.nonzero()[:, 0].cpu()
            products = self.clients.inner_products([f"{CHANGE}.{name}" for name in self.endpoint_names], ids)
            centres = spread_on_simplex(principal_coordinates(products.cpu(), self.endpoints))
            stored = ids % processes.count() == processes.rank()
            places = ids[stored] // processes.count()
            rows = self.clients.stack(f"{self.head_path}.centre")
            rows[places] = centres[stored].to(rows)
            self.clients.stack(REGION)[places] = 2

    def common_body(self) -> Tree:
        """The body, and the corner of the simplex where the head of new clients is the first endpoint, their own."""
        body = super().common_body()
        corner = torch.arange(self.endpoints, device=self.device) == 0
        with torch.inference_mode(False):  # a gradient needs it
            return {**body, f"{self.head_path}.centre": corner.clone().to(self.engine.dtype)}

    def count_traffic(self, batch: Round, up: Traffic, down: Traffic) -> None:
        """Participants also receive the centre of their region, once there are any."""
        super().count_traffic(batch, up, down)
        if batch.round_index >= self.uniform_rounds:
            down.add(self.clients.first([f"{self.head_path}.centre"]), len(batch.participants))

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """The model at the centre of the client's region, or of the simplex."""
        centre = f"{self.head_path}.centre"
        middle = torch.full_like(received.own[centre], 1 / self.endpoints)
        return received.with_own({centre: middle}) if model == "global" else received


class SimplexLinear(ExtendedLinear):
    """A linear layer whose weight is a mix of several.

    Args:
        layer: See ``ExtendedLinear``; its weight is the first of them.
        endpoints: Number of them.
    """

    centre: Tensor

    def __init__(self, layer: nn.Linear, endpoints: int) -> None:
        super().__init__(layer)
        first = layer.weight.detach()
        others = [nn.Linear(layer.in_features, layer.out_features).weight.detach() for _ in range(endpoints - 1)]
        self.others = nn.Parameter(torch.stack([first, *others])[1:].clone())
        self.register_buffer("centre", torch.full((endpoints,), 1 / endpoints))

    def forward(self, inputs: Tensor) -> Tensor:
        """The outputs of the mix."""
        weights = torch.cat([self.weight[None], self.others])
        return nn.functional.linear(inputs, torch.tensordot(self.centre, weights, dims=1), self.bias)
