from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfl_lightning.bounds import NonNegativeFloat, PositiveInt, Seed
from pfl_lightning.client import Examples, Samples
from pfl_lightning.data.datamodule import FederatedDataModule
from pfl_lightning.data.labelled import LabelledData
from pfl_lightning.data.partitions.users import NaturalUsers
from pfl_lightning.data.rounds import Round
from pfl_lightning.data.transforms import Numbers
from pfl_lightning.errors import PflError
from pfl_lightning.seeding import numpy_generator
from pfl_lightning.tasks import Regression, Task

Array = NDArray[np.float64]


class LinearRepresentation(FederatedDataModule):
    """A synthetic linear regression per user, on a representation that all users share.

    User i has samples ``y = <w_i, B^T x> + z`` with ``x ~ N(0, I)`` and ``z ~ N(0, noise^2)``. ``B`` has orthonormal
    columns, the Q factor of a Gaussian matrix, and ``w_i`` a random direction and the norm ``sqrt(rank)``. There are
    ``num_clients`` users. Numbers are stored in torch's default float type.

    With ``fresh``, every participant of a round trains on newly drawn samples, as many as it has training samples (in
    float64 under ``64-true``), as in SRPFL's analysis. The samples for evaluation and for fine-tuning do not change.

    Paper: Tziotis et al., "Straggler-Resilient Personalized Federated Learning" (SRPFL), TMLR 2023, arXiv:2206.02078;
    docs/evidence/derivations.md, Linear case.

    Args:
        dimension: Length of an input, d.
        rank: Width of the representation, k.
        samples: Samples of each user, those held out for tests included.
        noise: Standard deviation of the noise, sigma.
        generator_seed: Seed of the representation, the heads and the samples.
        fresh: Whether participants draw new training samples in every round, by ``seed``, the round and the client.
        kwargs: See ``FederatedDataModule``.

    Attributes:
        representation: ``B``, ``[dimension, rank]``.
        heads: ``w_i`` of each user, ``[users, rank]``.

    Raises:
        PflError: If the rank is larger than the dimension, or ``fresh`` is used with clients that are not users.
    """

    reads_samples = False
    usual_partition = NaturalUsers

    def __init__(
        self,
        dimension: PositiveInt = 20,
        rank: PositiveInt = 2,
        samples: PositiveInt = 40,
        noise: NonNegativeFloat = 0.1,
        generator_seed: Seed = 0,
        fresh: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if rank > dimension:
            raise PflError(f"data.rank must be 1 to {dimension}, the dimension, got {rank}")
        if fresh and not isinstance(self.partition, NaturalUsers):
            raise PflError(f"data.partition must be NaturalUsers with data.fresh, got {type(self.partition).__name__}")
        self.input_shape = (int(dimension),)  # a plain number, which a safe checkpoint can hold
        self.samples = samples
        self.noise = noise
        self.generator_seed = generator_seed
        self.fresh = fresh
        random = numpy_generator(generator_seed, "representation")
        self.representation: Array = np.linalg.qr(random.standard_normal((dimension, rank))).Q
        directions = random.standard_normal((self.num_clients, rank))
        self.heads: Array = np.sqrt(rank) * directions / np.linalg.norm(directions, axis=1, keepdims=True)

    def load(self) -> tuple[LabelledData, None]:
        """Draw the samples of all users."""
        random = numpy_generator(self.generator_seed, "samples")
        inputs = random.standard_normal((len(self.heads), self.samples, *self.input_shape))
        targets = self._targets(inputs, self.heads, random.standard_normal(inputs.shape[:2]))
        users = torch.arange(len(self.heads)).repeat_interleave(self.samples)
        dtype = torch.get_default_dtype()
        return LabelledData(_pooled(inputs, dtype), _pooled(targets, dtype), users), None

    @property
    def task(self) -> Task:
        """One real number for each sample."""
        return Regression().sized(1)

    def transform(self) -> Numbers:
        """The inputs, unchanged."""
        return Numbers()

    def make_round(self, index: int) -> Round:
        """The round with this index; also with ``fresh``, its cost only depends on the cohort size."""
        usual_round = super().make_round(index)
        if not (self.fresh and len(usual_round.examples)):
            return usual_round
        return usual_round._replace(examples=self._redrawn(usual_round.examples, index))

    def _redrawn(self, examples: Examples, index: int) -> Examples:
        """New samples of the same clients, as many as they had; all had the same number."""
        shape = examples.longest, *self.input_shape
        generators = [numpy_generator(self.seed, "samples", index, client) for client in examples.ids.tolist()]
        inputs = np.stack([generator.standard_normal(shape) for generator in generators])
        noise = np.stack([generator.standard_normal(examples.longest) for generator in generators])
        heads = self.heads[examples.index[:, 0].numpy() // self.samples]  # the table has one user after the other
        targets = self._targets(inputs, heads, noise)
        is_double = self.trainer is not None and self.trainer.precision == "64-true"
        dtype = torch.float64 if is_double else torch.get_default_dtype()
        samples = Samples(_pooled(inputs, dtype), _pooled(targets, dtype), self.transform())
        return replace(examples, samples=samples, index=torch.arange(targets.size).view(targets.shape))

    def _targets(self, inputs: Array, heads: Array, noise: Array) -> Array:
        """Targets ``[users, samples]`` of inputs ``[users, samples, dimension]``, with noise of variance 1 scaled."""
        targets: Array = np.einsum("usr,ur->us", inputs @ self.representation, heads) + self.noise * noise
        return targets


def _pooled(array: Array, dtype: torch.dtype) -> Tensor:
    """Merge the first two axes of ``[users, samples, ...]``."""
    return torch.from_numpy(array).flatten(0, 1).to(dtype)
