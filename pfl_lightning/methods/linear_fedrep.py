from typing import Any, Literal

import torch
from torch import Tensor

from pfl_lightning.bounds import PositiveFloat
from pfl_lightning.client import Examples, LocalTraining, LRSchedule
from pfl_lightning.data import Round, federated
from pfl_lightning.errors import PflError
from pfl_lightning.federation.sparsity import Sparsity
from pfl_lightning.methods.families.averaging import Aggregated, ServerOptimized, Uplinked, Weighted
from pfl_lightning.methods.families.fine_tuned import FineTuned
from pfl_lightning.metrics import orthonormal, principal_angle_distance
from pfl_lightning.models import LinearNetwork
from pfl_lightning.seeding import Key, seed_of
from pfl_lightning.server import DPAggregator
from pfl_lightning.tasks import Regression, Task
from pfl_lightning.tree import Params, Tree

BODY = "body.weight"  # [rank, dimension]: B transposed
HEAD = "head.weight"  # [1, rank]


class LinearFedRep(FineTuned, Weighted, Aggregated, Uplinked, ServerOptimized):
    """FedRep for linear regression, with closed-form heads.

    Rule of a round; B is the representation, with orthonormal columns, and X_i, y_i are the m_i samples of client i:

        w_i = argmin_w |X_i B w - y_i|^2
        B_i = B - lr / m_i X_i^T (X_i B w_i - y_i) w_i^T
        keep w_i
        B   = Q of QR(B - server_lr (B - sum_i weight_i B_i)), with diag(R) > 0

    B starts as the leading eigenvectors of the mean over all clients of ``1 / m_i sum_j y_j^2 x_j x_j^T``, on their
    fixed samples (``method_of_moments``), or as a ``random`` orthonormal matrix. The fine-tuned model is w_i under the
    received B. Linear SRPFL is the same with the ``StageDoubling`` callback. If the data set knows its true
    representation, the principal-angle distance to it is logged as ``train/distance``.

    The paper's weights are ``uniform``; it bounds ``lr`` by 1/8 for well-spread heads, but 0.5 is stable too. There are
    no options for the loss and for local SGD, since the method has neither.
    ``eval_epochs`` only turns fine-tuning on (above 0) or off (0).

    Paper: Tziotis et al., Straggler-Resilient Personalized Federated Learning, 2023, arXiv:2206.02078, Algorithm 2.

    Args:
        init: Initial representation.
        lr: Learning rate of the representation.
        lr_schedule: Scheduler of torch that steps once a round on a rate of 1: the factor of ``lr``. Default: constant.
        kwargs: Options of the bases; the network must be a ``LinearNetwork``.
    """

    doubled_name = "LinearSRPFL"

    keeps = "head"

    def __init__(
        self,
        init: Literal["method_of_moments", "random"] = "method_of_moments",
        lr: PositiveFloat = 0.01,
        lr_schedule: LRSchedule | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            pretrained=None,
            head=1,
            task=None,
            local=LocalTraining(lr=lr, lr_schedule=lr_schedule),
            sparsity=Sparsity(),
            **kwargs,
        )
        self.init = init
        if init == "method_of_moments" and isinstance(self.aggregator, DPAggregator):
            raise PflError("model.init: method_of_moments is not possible with DPAggregator; allowed: random")

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Solve for the heads, then take one gradient step on the representation."""
        trained = self.engine.each(self._client_step, received, *self._regressions(cohort))
        losses = trained.pop("loss")
        return Params({}, trained), losses

    def _client_step(self, tensors: Tree, inputs: Tensor, targets: Tensor, count: Tensor) -> Tree:
        """Local work of one client on its samples, ``[samples, dimension]`` and ``[samples]``."""
        body = tensors[BODY]
        head = _closed_form_head(tensors, inputs, targets)[HEAD]
        errors = inputs @ body.T @ head[0] - targets
        gradient = torch.outer(head[0], errors @ inputs) / count
        step = self.rate(self.local_sgd.lr) * gradient
        return {BODY: body - step, HEAD: head, "loss": errors.square().sum() / (2 * count)}

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Take the server's step, then make the representation orthonormal again."""
        super().server_update(mean, batch)
        self._set_representation(orthonormal(self.representation))

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """The closed-form heads under the received representation, or the stored heads."""
        if model == "stored":
            return received
        inputs, targets, _ = self._regressions(train)
        return Params(received.shared, self.engine.each(_closed_form_head, received, inputs, targets))

    def _regressions(self, examples: Examples) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs ``[clients, longest, dimension]``, targets ``[clients, longest]`` (both 0 for padding) and counts."""
        present = examples.present.to(self.representation.dtype)
        inputs = examples.gather(examples.positions).flatten(2)
        targets = examples.targets(examples.positions)
        return inputs * present[..., None], targets * present, examples.device_counts

    # The representation

    @property
    def representation(self) -> Tensor:
        """B, ``[dimension, rank]``."""
        return self.network.get_parameter(BODY).detach().T

    @torch.no_grad()
    def _set_representation(self, basis: Tensor) -> None:
        self.network.get_parameter(BODY).copy_(basis.T)

    def build(self, input_shape: tuple[int, ...], task: Task, *args: Any, **kwargs: Any) -> None:
        """Make the network and the heads, once; see ``Method.build``.

        Raises:
            PflError: If the data is not a regression, the network is not linear, or its rank exceeds the dimension.
        """
        if not isinstance(task, Regression) or task.outputs != 1:
            raise PflError(
                f"data: {task.goal} is not possible with LinearFedRep; allowed: one real number for a sample"
            )
        super().build(input_shape, task, *args, **kwargs)
        if not isinstance(self.network, LinearNetwork):
            kind = self.network.kind
            raise PflError(f"model.network: {kind} is not possible with LinearFedRep; allowed: LinearNetwork")
        dimension, rank = self.representation.shape
        if rank > dimension:
            raise PflError(f"model.network.rank: {rank} is not possible; allowed: 1 to {dimension}, the dimension")

    def setup(self, stage: str) -> None:
        """Build the method; see ``Method.setup``.

        Raises:
            PflError: If the precision is none that torch solves equations in.
        """
        if self.trainer.precision == "bf16-true":
            problem = "bf16-true is not possible with LinearFedRep, which solves equations"
            raise PflError(f"trainer.precision: {problem}; allowed: 32-true, 64-true, bf16-mixed")
        super().setup(stage)

    def on_fit_start(self) -> None:
        """Initialise the representation of a new run.

        Raises:
            PflError: If a client has fewer samples than its head has parameters.
        """
        data = federated(self.trainer)
        examples = data.tables["train"].examples(torch.arange(data.training_clients))
        dimension, rank = self.representation.shape
        if (fewest := int(examples.counts.min())) < rank:
            raise PflError(f"data: {fewest} training samples on a client; allowed: {rank} (model.network.rank) or more")
        if self.accounting.clock.rounds > 0:
            return
        if self.init == "method_of_moments":
            moment = second_moment(*self._regressions(examples.to(self.device, self.engine.dtype)))
            self._set_representation(torch.linalg.eigh(moment).eigenvectors[:, -rank:])
        else:
            generator = torch.Generator().manual_seed(seed_of(data.seed, "representation"))
            self._set_representation(orthonormal(torch.randn(dimension, rank, generator=generator)))

    def log_clock(self) -> None:
        """Log the distance to the data set's true representation, in addition to the simulated seconds."""
        super().log_clock()
        truth = getattr(federated(self.trainer), "representation", None)
        if truth is not None:
            truth = torch.as_tensor(truth).to(self.representation)
            self.log("train/distance", principal_angle_distance(self.representation, truth), prog_bar=True)


def second_moment(inputs: Tensor, targets: Tensor, counts: Tensor) -> Tensor:
    """Mean over the clients of ``P_i = 1 / m_i sum_j y_j^2 x_j x_j^T``.

    Its expectation for one client is ``(|t|^2 + sigma^2) I + 2 t t^T`` with ``t = B w_i``.

    Args:
        inputs: ``[clients, longest, dimension]``, 0 for padding.
        targets: ``[clients, longest]``, 0 for padding.
        counts: Samples of each client, ``[clients]``.

    Returns:
        A symmetric matrix, ``[dimension, dimension]``.
    """
    weights = targets.square() / (counts[:, None] * len(counts))
    return torch.einsum("cs,csi,csj->ij", weights, inputs, inputs)


def _closed_form_head(tensors: Tree, inputs: Tensor, targets: Tensor) -> Tree:
    """One client's head by least squares.

    The default driver on a CPU, gelsy, is not deterministic before torch's pull request 187436, because its pivots
    are uninitialised. CUDA only has gels.
    """
    driver = None if inputs.is_cuda else "gelsd"
    return {HEAD: torch.linalg.lstsq(inputs @ tensors[BODY].T, targets[:, None], driver=driver).solution.T}
