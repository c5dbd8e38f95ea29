import re

import lightning.pytorch as pl

from pfl_lightning.callbacks.evaluation import callbacks_of
from pfl_lightning.data import federated
from pfl_lightning.errors import PflError, one_line
from pfl_lightning.methods import method_of
from pfl_lightning.metrics import ClientMetric, ClientScore, MetricFactory, build_metric, metric_name
from pfl_lightning.report.run_files import CORRECT, EVALUATION, RESULTS
from pfl_lightning.score_kind import ACCURACY, LOSS
from pfl_lightning.tasks import Task

RESERVED_NAMES = {ACCURACY.name, ACCURACY.error_name, LOSS.name, *EVALUATION, *RESULTS, CORRECT}
KEY = "trainer.callbacks"


class ClientMetrics(pl.Callback):
    """Scores the clients by one of torchmetrics' metrics too, such as F1 or AUROC, at each evaluation.

    Every evaluated model gets it on every split, computed for each client on its own samples. It is logged as accuracy
    is (``test/finetuned/f1/mean``, ``std``, ``worst``, percentiles) and has a column in ``clients.csv``. Clients
    without a value, as an AUROC of one class, are left out of these; ``test/finetuned/auroc/left_out`` counts them.

    Args:
        metric: Class of the metric, such as ``torchmetrics.classification.MulticlassF1Score``. The data's number of
            classes is filled in; class labels come with probabilities. See ``ClientMetric``.
        name: Its name in logged values. Default: that of its class, in short, such as ``f1``.
    """

    def __init__(self, metric: MetricFactory, name: str | None = None) -> None:
        self.metric = metric
        self.name = name

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Try the metric.

        Raises:
            PflError: If it cannot be made or computed for this data, or its name is taken.
        """
        data = federated(trainer)
        method = method_of(pl_module)
        if not method.built_for:  # which this comes before in a trainer of the user's own
            method.build_for(data)
        self.name = self._try_metric(method.task, type(data).__name__)
        score = ClientScore(1, method.task)
        taken = RESERVED_NAMES.union(score.columns(score.scores()))
        names = [callback.name for callback in callbacks_of(trainer, ClientMetrics)]
        if self.name in taken or names.count(self.name) > 1:
            raise PflError(f"{KEY}.name: {self.name} is taken; give this metric another name")
        if not re.fullmatch(r"\w+", self.name):
            raise PflError(f"{KEY}.name must consist of letters, digits and _, got {self.name!r}")

    def _try_metric(self, task: Task, data: str) -> str:
        """Compute the metric for predictions that are right, on data of this name; returns the metric's name."""
        outputs, targets = task.examples()
        try:
            metric = build_metric(self.metric, task)
            value = ClientMetric(1, metric, "", task).measure(outputs, targets)
        except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
            raise PflError(f"{KEY}.metric: not possible for {data}: {one_line(error)}") from error
        if value.isnan():
            raise PflError(f"{KEY}.metric: {type(metric).__name__} gives nan for {data}")
        return self.name or metric_name(metric)

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Have the clients evaluated by the metric."""
        method = method_of(pl_module)
        data = federated(trainer)
        for tag in method.evaluator.scores:
            metric = build_metric(self.metric, method.task)
            metric = ClientMetric(data.eval_clients, metric, str(self.name), method.task)
            method.evaluator.others[f"{tag}/{self.name}"] = metric.to(method.device)

    on_test_epoch_start = on_validation_epoch_start
