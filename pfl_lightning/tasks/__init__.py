"""What targets are, and how predictions of them are judged: a task is a file."""

from pfl_lightning.tasks.classification import Classification, as_outputs, log_probabilities
from pfl_lightning.tasks.multi_label import MultiLabel
from pfl_lightning.tasks.next_token import NO_TARGET, NextToken
from pfl_lightning.tasks.own_loss import LossFunction, OwnLoss, try_loss
from pfl_lightning.tasks.regression import Regression
from pfl_lightning.tasks.segmentation import IGNORED, Segmentation
from pfl_lightning.tasks.survival import Survival
from pfl_lightning.tasks.task import AMOUNT, Sums, Task, check_values, try_task

__all__ = [
    "AMOUNT",
    "IGNORED",
    "NO_TARGET",
    "Classification",
    "LossFunction",
    "MultiLabel",
    "NextToken",
    "OwnLoss",
    "Regression",
    "Segmentation",
    "Sums",
    "Survival",
    "Task",
    "as_outputs",
    "check_values",
    "log_probabilities",
    "try_loss",
    "try_task",
]
