from pfl_lightning.models.adapters import (
    LoRA,
    adapted_layers,
    add_second_adapters,
    both_factors,
    in_its_layout,
    product,
)
from pfl_lightning.models.factory import Architectures, NetworkFactory
from pfl_lightning.models.hugging_face import HuggingFaceModel
from pfl_lightning.models.lenet import ConvNet, LeNet5
from pfl_lightning.models.linear import MLP, LinearNetwork, LogisticRegression, ProportionalHazards
from pfl_lightning.models.narrow import in_corner, narrow_shapes
from pfl_lightning.models.network import ExtendedLinear, Head, InputKind, Network, Part, Parts
from pfl_lightning.models.resnet import ResNet18, WideResNet
from pfl_lightning.models.start import start_network, start_networks
from pfl_lightning.models.text import CharGRU, FastText, LSTMClassifier, TweetLSTM, WordLSTM
from pfl_lightning.models.unet import UNet
from pfl_lightning.models.vgg import VGG, AlexNet
from pfl_lightning.models.vit import ViT

__all__ = [
    "MLP",
    "VGG",
    "AlexNet",
    "Architectures",
    "CharGRU",
    "ConvNet",
    "ExtendedLinear",
    "FastText",
    "Head",
    "HuggingFaceModel",
    "InputKind",
    "LSTMClassifier",
    "LeNet5",
    "LinearNetwork",
    "LoRA",
    "LogisticRegression",
    "Network",
    "NetworkFactory",
    "Part",
    "Parts",
    "ProportionalHazards",
    "ResNet18",
    "TweetLSTM",
    "UNet",
    "ViT",
    "WideResNet",
    "WordLSTM",
    "adapted_layers",
    "add_second_adapters",
    "both_factors",
    "in_corner",
    "in_its_layout",
    "narrow_shapes",
    "product",
    "start_network",
    "start_networks",
]
