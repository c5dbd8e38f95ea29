from pfl_lightning.client.engine import BackendName, Engine
from pfl_lightning.client.examples import Examples, Samples, largest_first
from pfl_lightning.client.losses import (
    STANDARD,
    Loss,
    LossFunction,
    OwnLoss,
    as_outputs,
    log_probabilities,
    loss_of_samples,
    sample_losses,
    try_loss,
)
from pfl_lightning.client.optimizers import squared_norms
from pfl_lightning.client.penalties import Correlation, Penalty, Proximity, Ridge, SmoothL1, total
from pfl_lightning.client.phase import FeatureLoss, Follow, Gradient, LocalOptimizer, Masked, Phase
from pfl_lightning.client.predictions import ClientPredictions, join_outputs

__all__ = [
    "STANDARD",
    "BackendName",
    "ClientPredictions",
    "Correlation",
    "Engine",
    "Examples",
    "FeatureLoss",
    "Follow",
    "Gradient",
    "LocalOptimizer",
    "Loss",
    "LossFunction",
    "Masked",
    "OwnLoss",
    "Penalty",
    "Phase",
    "Proximity",
    "Ridge",
    "Samples",
    "SmoothL1",
    "as_outputs",
    "join_outputs",
    "largest_first",
    "log_probabilities",
    "loss_of_samples",
    "sample_losses",
    "squared_norms",
    "total",
    "try_loss",
]
