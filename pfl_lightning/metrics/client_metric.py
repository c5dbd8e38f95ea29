"""A metric of torchmetrics for each client, with a state of one number per client."""

import inspect
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.prints import rank_zero_only

from pfl_lightning.metrics.functional import client_summary
from pfl_lightning.objects import unwrap_partial
from pfl_lightning.score_kind import ScoreKind
from pfl_lightning.tasks import Classification, Task

AFFIXES = re.compile("^(Binary|Multiclass|Multilabel)|Score$")
WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
MEANINGLESS = re.compile("No (positive|negative) samples|at least two samples")  # a warning or an error of torchmetrics


class MetricFactory(Protocol):
    """Makes a metric; a metric that takes a number of classes, or of labels, gets that of the data."""

    def __call__(self, *, num_classes: int, num_labels: int) -> Metric:
        """Make the metric of one client."""


def build_metric(factory: MetricFactory, task: Task) -> Metric:
    """The metric for a task, with as many classes or labels; the classes may be those of tokens."""
    parameters = inspect.signature(unwrap_partial(factory)).parameters
    numbers = {"num_classes": task.classes if task.classes > 1 else task.outputs, "num_labels": task.outputs}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Metric .* will save all targets")  # which are those of one client
        return factory(**{name: number for name, number in numbers.items() if name in parameters})


def metric_name(metric: Metric) -> str:
    """Name of a metric in logged values: ``f1`` of ``MulticlassF1Score``, ``mean_absolute_error``."""
    return WORDS.sub("_", AFFIXES.sub("", type(metric).__name__)).lower()


class ClientMetric(Metric):
    """A metric of every client's predictions, computed on the client's samples alone.

    The metric gets predictions as the task gives them: for class labels the probabilities of all classes,
    ``[samples, classes]``, if it has a ``num_classes``, or of class 1, ``[samples]``, if it is binary. If it returns
    one number per class, the client's value is their mean over the classes that the client holds.

    A client is left out if it has no samples, or if the metric says that its value is meaningless, as the area under a
    curve with a single class is, or R2 of one sample; or if a binary metric divides by its positive samples, as recall
    and F1 do, and it has none.

    Args:
        num_clients: Number of clients.
        metric: The metric of one client.
        name: Its name in logged values.
        task: What the targets are.
    """

    is_differentiable = False
    full_state_update = False

    samples: Tensor
    sums: Tensor

    def __init__(self, num_clients: int, metric: Metric, name: str, task: Task) -> None:
        super().__init__()
        higher_is_better = metric.higher_is_better is not False
        self.score_kind = ScoreKind(name, higher_is_better, scale=1, unit="", digits=4)
        self.wrapped = [metric]  # in a list, so that it is not part of this metric's state
        self.task = [task]
        self.add_state("samples", torch.zeros(num_clients, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("sums", torch.zeros(num_clients), dist_reduce_fx="sum")

    def measure(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The value of one client; nan if it has none.

        Args:
            outputs: Outputs of its model, ``[samples, outputs]``.
            targets: ``[samples]``, at least one.

        Raises:
            ValueError: If the metric refuses them, or returns neither one number nor one for each class.
        """
        (metric,) = self.wrapped
        (task,) = self.task
        outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
        takes_classes = "num_classes" in inspect.signature(type(metric).__init__).parameters
        metric.to(outputs.device).reset()
        if hasattr(metric, "zero_division") and not takes_classes and targets.ndim == 1 and not (targets == 1).any():
            return outputs.new_tensor(torch.nan)
        with _unsynchronized(metric) as caught:
            try:
                metric.update(task.predictions(outputs, takes_classes), targets)
                value = metric.compute()
            except ValueError as error:
                if MEANINGLESS.search(str(error)):
                    return outputs.new_tensor(torch.nan)
                raise ValueError(f"{type(metric).__name__} of a client: {error}") from error
        is_meaningless = any(MEANINGLESS.search(str(warning.message)) for warning in caught)
        if not isinstance(value, Tensor) or value.ndim > 1:
            raise ValueError(f"{type(metric).__name__} returns neither one number nor one for each class")
        classes = targets.unique() if isinstance(task, Classification) else targets[:0]
        if value.ndim == 1 and len(value) > len(classes) > 0:
            value = value[classes]
        is_single = value.ndim == 0 or len(classes) == 1
        return value.new_tensor(torch.nan) if is_meaningless and is_single else value.to(self.sums.dtype).mean()

    def update(self, ids: Tensor, samples: Tensor, values: Tensor) -> None:
        """Add the values of some clients.

        Args:
            ids: Client ids, ``[clients]``.
            samples: Number of evaluated samples, ``[clients]``.
            values: The values, ``[clients]``; nan if a client has none.
        """
        valid = ~values.isnan()
        self.samples.index_add_(0, ids[valid], samples[valid])
        self.sums.index_add_(0, ids[valid], values[valid].to(self.sums.dtype))

    def scores(self) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, samples and values of the clients of this process that have a value, ``[clients]`` each."""
        ids = self.samples.nonzero().squeeze(1)
        return ids, self.samples[ids], self.sums[ids]

    def compute(self) -> dict[str, Tensor]:
        """``mean``, ``weighted_mean``, ``std`` and ``worst`` over the clients, and how many are ``left_out``."""
        ids, samples, values = self.scores()
        left_out = torch.tensor(float(len(self.samples) - len(ids)))
        return {**client_summary(values, samples, self.score_kind.higher_is_better), "left_out": left_out}


@contextmanager
def _unsynchronized(metric: Metric) -> Iterator[list[warnings.WarningMessage]]:
    """Compute a metric of this process alone, which has all predictions of the client, and record its warnings.

    torchmetrics would gather the predictions of other processes, too, and warns in the first process only.
    """
    metric.distributed_available_fn = lambda: False
    process = vars(rank_zero_only)
    rank = process["rank"]
    process["rank"] = 0
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield caught
    finally:
        process["rank"] = rank
