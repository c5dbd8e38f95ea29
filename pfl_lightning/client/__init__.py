from pfl_lightning.client.engine import BackendName, Engine
from pfl_lightning.client.examples import Examples, Samples, largest_first
from pfl_lightning.client.local_training import LocalTraining
from pfl_lightning.client.losses import Loss, UsualLoss
from pfl_lightning.client.optimizers import squared_norms
from pfl_lightning.client.penalties import Correlation, Cosine, Penalty, Proximity, Ridge, SmoothL1, total
from pfl_lightning.client.phase import FeatureLoss, Follow, Gradient, LocalOptimizer, Masked, Phase
from pfl_lightning.client.predictions import ClientPredictions, join_outputs
from pfl_lightning.client.schedule import LRSchedule, Schedule

__all__ = [
    "BackendName",
    "ClientPredictions",
    "Correlation",
    "Cosine",
    "Engine",
    "Examples",
    "FeatureLoss",
    "Follow",
    "Gradient",
    "LRSchedule",
    "LocalOptimizer",
    "LocalTraining",
    "Loss",
    "Masked",
    "Penalty",
    "Phase",
    "Proximity",
    "Ridge",
    "Samples",
    "Schedule",
    "SmoothL1",
    "UsualLoss",
    "join_outputs",
    "largest_first",
    "squared_norms",
    "total",
]
