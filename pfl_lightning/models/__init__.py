from pfl_lightning.models.lenet import ConvNet, LeNet5
from pfl_lightning.models.logistic import LogisticRegression
from pfl_lightning.models.mlp import MLP
from pfl_lightning.models.network import Network

__all__ = ["MLP", "ConvNet", "LeNet5", "LogisticRegression", "Network"]
