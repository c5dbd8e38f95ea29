from functools import partial

import torch
from torch import Tensor

from pfl_lightning.client import Examples
from pfl_lightning.data import Round, federated
from pfl_lightning.errors import PflError
from pfl_lightning.federation.accounting import Traffic
from pfl_lightning.methods.families.whole_models import WholeModels
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree, prefixed, select

START = "start"  # prefix of the model with which a client starts a round


class FedFomo(WholeModels):
    """Every client mixes the models of a round by how much each of them improves on its own validation samples.

    Rule of a round; u_i is the model of client i, V_i the loss on its validation samples, and j are the participants,
    client i among them:

        w_i  = SGD for epochs on f_i, from u_i
        a_ij = max(0, (V_i(u_i) - V_i(w_j)) / |w_j - u_i|)
        u_i  = u_i + sum_j a_ij (w_j - u_i) / sum_j a_ij        # w_i, if no a_ij is above 0

    The norm is that of all parameters in a row. Clients are evaluated with u_i (``personal``); that is what validation
    samples have chosen, so that scores on them look better than they are. A round takes a forward pass over every
    participant's validation samples for each participant. The rest is as in ``WholeModels``, but that the server only
    passes models on, and participants see each other's.

    Paper: Zhang, Sapra, Fidler, Yeung, Alvarez, Personalized Federated Learning with First Order Model Optimization,
    ICLR 2021, arXiv:2012.08565.

    Differs: in the paper a client receives some of the models, by how much they have helped before and by chance; here
    it receives those of all participants. Where no model improves, the paper keeps u_i.
    """

    eval_models = ("personal",)

    def setup(self, stage: str) -> None:
        """Build the method; see ``Method.setup``.

        Raises:
            PflError: If it is to train, and no client has validation samples.
        """
        super().setup(stage)
        data = federated(self.trainer)
        if stage == "fit" and not data.tables["val"].counts[: data.training_clients].any():
            share = data.held_out.val_fraction
            raise PflError(
                f"data.val_fraction: {share} is not possible with FedFomo, which compares models on validation samples "
                "of the clients that train; allowed: a share that leaves some, such as 0.1"
            )

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """A client's model after its last training, and that with which it starts a round (``start.*``)."""
        state = super().initial_state(tensors, num_clients, seed)
        return {**state, **prefixed(START, state)}

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train from where the client starts."""
        start = received.under(START)
        trained, losses = super().local_update(cohort, start, key)
        return trained.beside(START, start), losses

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Mix a model for every participant; the network becomes the mean of the clients' models."""
        ids = batch.examples.host_ids.sort().values
        held_out = federated(self.trainer).tables["val"].examples(ids).to(self.device, self.engine.dtype)
        self.clients.mix(self.shares(held_out), self.parts["all"], into=START, ids=ids)
        super().server_update(mean, batch)

    def shares(self, held_out: Examples) -> Tensor:
        """The share of each participant's model in the mix of each, ``[receivers, senders]``.

        Args:
            held_out: Validation samples of the participants, ids rising.
        """
        ids = held_out.host_ids
        compare = partial(self.cohort.map_clients, "comparing", clients=self.clients, dtype=self.engine.dtype)
        before = compare(lambda cohort: self.engine.mean_losses(cohort, self.starts(cohort)), held_out)
        columns = []
        for client in ids.split(1):
            model = self.clients.mean(self.parts["all"], client)

            def gains(cohort: Examples, model: Tree = model) -> Tensor:
                losses = before[torch.searchsorted(ids, cohort.host_ids)].to(cohort.ids.device)
                start = select(self.starts(cohort).own, self.engine.trainable)
                moves = [(model[name] - stack).reshape(len(cohort), -1) for name, stack in start.items()]
                distances = torch.cat(moves, 1).square().sum(1).sqrt()
                gain: Tensor = losses - self.engine.mean_losses(cohort, Params(model, {}))
                return gain / distances.clamp(min=1e-12)

            columns.append(compare(gains, held_out))
        weights = torch.stack(columns, 1).clamp(min=0)
        total = weights.sum(1, keepdim=True)
        return torch.where(total > 0, weights / total, torch.eye(len(ids), dtype=weights.dtype))

    def starts(self, cohort: Examples) -> Params:
        """The models with which clients have started the round, ``[cohort, ...]``."""
        return Params({}, self.clients.gather(cohort.ids)).under(START)

    def count_traffic(self, batch: Round, up: Traffic, down: Traffic) -> None:
        """Every participant sends its model, unless that is dropped, and then receives those of the others."""
        model = self.clients.first(self.parts["all"])  # all are of the same size
        senders = len(batch.examples)
        up.add(model, senders)
        down.add(model, senders * (senders - 1))

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """The model with which a client starts a round."""
        return received.under(START)
