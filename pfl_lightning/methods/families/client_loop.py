"""A method whose clients train in an ordinary loop of PyTorch, one client after another."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import count
from math import ceil
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn

from pfl_lightning.client import Examples, Phase
from pfl_lightning.client.epochs import augmentation_bits, visiting_orders
from pfl_lightning.client.layers import set_mode
from pfl_lightning.errors import PflError
from pfl_lightning.federation.client_models import module_of
from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.models import Part
from pfl_lightning.seeding import Key, seed_of
from pfl_lightning.tree import Params, sum_type


class ClientLoader:
    """Mini-batches of one client's training samples: inputs ``[batch, ...]`` and targets ``[batch, ...]``.

    Each ``for`` loop over it is a local epoch, in a new order and augmented anew, as in the training of other methods.

    Args:
        examples: Training examples of this client alone.
        phase: How many samples are in a mini-batch, and how many mini-batches in an epoch.
        key: Key for the orders and the augmentation.
        report: Counts samples that were visited, and gradients of samples.

    Attributes:
        client: The client's id.
    """

    def __init__(self, examples: Examples, phase: Phase, key: Key, report: Callable[[int, int], None]) -> None:
        self.client = int(examples.host_ids[0])
        self._examples = examples
        self._phase = phase
        self._key = key
        self._report = report
        self._numbers = count()

    def __len__(self) -> int:
        return ceil(self._phase.visited(self._examples.longest) / self._phase.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        number = next(self._numbers)
        (order,) = visiting_orders(self._examples, self._phase, [(*self._key, "order", number)])
        bits = augmentation_bits(self._examples, order, (*self._key, "augment", number))
        for start in range(0, order.shape[1], self._phase.batch_size):
            batch = order[:, start : start + self._phase.batch_size]
            batch_bits = None if bits is None else bits[:, start : start + self._phase.batch_size]
            self._report(batch.shape[1], batch.shape[1])
            yield self._examples.gather(batch, batch_bits)[0], self._examples.targets(batch)[0]


class ClientLoop(Averaging, ABC):
    """Clients train in a loop of your own: ordinary PyTorch, one client after another, and so slowly.

    Rule of a round:

        w_i = client_update(model with (shared, keep_i), batches of client i)
        shared = shared - server_lr * (shared - sum_i weight_i * w_i)

    ``keeps`` says which part of its model a client keeps, and ``trains`` which part ``client_update`` may change, the
    rest being frozen. ``local.batch_size`` and ``local.epoch_steps`` hold for the loader; the other numbers of
    ``local`` do what ``client_update`` makes of them, and ``backend`` is for evaluations alone. What a client must
    remember stands in its model: attributes of the method are not saved.

    Raises:
        PflError: If there is a penalty on sparse models, which the loop would leave out.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self.sparsity.weight:
            name = type(self).__name__
            raise PflError(f"model.sparsity.weight must be 0 with {name}, got {self.sparsity.weight}")

    @abstractmethod
    def client_update(self, model: nn.Module, loader: ClientLoader) -> Tensor | float | None:
        """Train one client's model in place. Torch's, numpy's and Python's random numbers are seeded for the client.

        Args:
            model: An ordinary module in training mode, with the tensors that the client has received and kept. It is a
                copy: what it holds afterwards is what the client uploads and keeps.
            loader: Mini-batches of the client's training samples, on the model's device.

        Returns:
            The client's training loss, for the log. Without one, the log has the mean loss of the trained model.
        """

    def parameters_of(self, model: nn.Module, part: Part) -> list[nn.Parameter]:
        """The parameters of one part of a client's model, such as its ``head`` or its ``body``, for an optimizer."""
        names = {self.network.original_name(name) for name in self.parts[part]}
        return [parameter for name, parameter in model.named_parameters() if name in names]

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train one client after another with ``client_update``."""
        names = {name: self.network.original_name(name) for name in self.parts[self.trains]}
        stacks = received.room(names, len(cohort))
        losses: list[float | None] = []
        for place in range(len(cohort)):
            model = module_of(self.network, received.rows(place, place + 1))
            set_mode(model, names.values())
            model.requires_grad_(False)
            for parameter in self.parameters_of(model, self.trains):
                parameter.requires_grad_(True)
            losses.append(self._client_loss(model, cohort.rows(place, place + 1), (*key, self.trains)))
            trained = model.state_dict()
            for name, stack in stacks.items():
                stack[place] = trained[names[name]]
        params = received.with_own(stacks)
        if None in losses:
            return params, self.engine.mean_losses(cohort, params)
        return params, torch.tensor(losses, dtype=sum_type(self.engine.dtype), device=cohort.ids.device)

    def _client_loss(self, model: nn.Module, examples: Examples, key: Key) -> float | None:
        """Run ``client_update`` for a client with random numbers of its own, and look at what it returns."""
        loader = ClientLoader(examples, self.local_sgd, key, self.engine.report)
        with isolate_rng():
            seed = seed_of(*key, "client_update", loader.client)
            random.seed(seed)
            np.random.seed(seed % (1 << 32))
            torch.manual_seed(seed)
            loss = self.client_update(model, loader)
        try:
            return None if loss is None else float(torch.as_tensor(loss).detach())
        except (TypeError, ValueError, RuntimeError):
            name = type(self).__name__
            raise PflError(f"{name}.client_update must return a loss or nothing, got {type(loss).__name__}") from None
