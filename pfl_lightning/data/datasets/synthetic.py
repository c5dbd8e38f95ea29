from typing import Any

import numpy as np
import torch
from numpy.random import RandomState
from numpy.typing import NDArray

from pfl_lightning.bounds import NonNegativeFloat, Seed
from pfl_lightning.data.datamodule import FederatedDataModule
from pfl_lightning.data.labelled import LabelledData
from pfl_lightning.data.partitions.users import NaturalUsers
from pfl_lightning.data.transforms import Numbers

Array = NDArray[np.float64]
SMALLEST = 250  # samples of a user


class Synthetic(FederatedDataModule):
    """Synthetic(alpha, beta): 60 features, 10 classes; each user has its own model and input distribution.

    The recipe of FedProx with the sizes of pFedMe's code, ``num_clients`` users in all: user i has
    ``5 * (50 + lognormal(4, 2))`` samples ``x ~ N(v_i, diag(j^-1.2))`` with the label ``argmax(W_i^T x + b_i)``. The
    entries of ``W_i`` and ``b_i`` are drawn from ``N(u_i, 1)`` with ``u_i ~ N(0, alpha^2)``, those of ``v_i`` from
    ``N(B_i, 1)`` with ``B_i ~ N(0, beta^2)``. The draws and their order are those of pFedMe's code, so the data are the
    same.

    In the published recipe ``alpha`` has no effect on the samples: ``u_i`` shifts the scores of all classes equally.

    Paper: Li et al., "Federated Optimization in Heterogeneous Networks" (FedProx), MLSys 2020, arXiv:1812.06127;
    pFedMe, arXiv:2006.08848; used by FedMac, arXiv:2107.05330.

    Args:
        alpha: Standard deviation of the means of the models.
        beta: Standard deviation of the means of the inputs.
        generator_seed: Seed of the samples; pFedMe's is 0.
        kwargs: See ``FederatedDataModule``.
    """

    num_classes = 10
    input_shape = (60,)
    reads_samples = False
    usual_partition = NaturalUsers

    def __init__(
        self,
        alpha: NonNegativeFloat = 0.5,
        beta: NonNegativeFloat = 0.5,
        generator_seed: Seed = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.alpha = alpha
        self.beta = beta
        self.generator_seed = generator_seed

    def load(self) -> tuple[LabelledData, None]:
        """Draw the samples of all users."""
        random = RandomState(self.generator_seed)
        users = self.num_clients
        sizes = SMALLEST + 5 * (random.lognormal(4, 2, users).astype(np.int64))
        model_means = random.normal(0, self.alpha, users)
        input_means = random.normal(0, self.beta, users)
        centres = [random.normal(mean, 1, self.input_shape) for mean in input_means]
        samples = [self._draw(random, *user) for user in zip(model_means, centres, sizes, strict=True)]
        inputs, targets = (torch.from_numpy(np.concatenate(arrays)) for arrays in zip(*samples, strict=True))
        return LabelledData(inputs, targets, torch.arange(users).repeat_interleave(torch.from_numpy(sizes))), None

    def transform(self) -> Numbers:
        """The features, unchanged."""
        return Numbers()

    def _draw(
        self, random: RandomState, mean: float, centre: Array, size: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Inputs and labels of one user."""
        (features,) = self.input_shape
        weights = random.normal(mean, 1, (features, self.num_classes))
        bias = random.normal(mean, 1, self.num_classes)
        deviations = np.arange(1, features + 1) ** -0.6
        inputs = centre + deviations * random.standard_normal((size, features))
        return inputs.astype(np.float32), (inputs @ weights + bias).argmax(1)
