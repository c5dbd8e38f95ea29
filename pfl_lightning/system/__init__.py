from pfl_lightning.system.asynchronous import Asynchronous, Flight, ServerUpdate
from pfl_lightning.system.clock import Clock
from pfl_lightning.system.ledger import Ledger, model_bits
from pfl_lightning.system.participation import Participation
from pfl_lightning.system.speeds import (
    DynamicExponential,
    FixedExponential,
    FixedSpeeds,
    Speeds,
    Times,
    TwoPopulation,
    UniformTime,
)
from pfl_lightning.system.staleness import Constant, Hinge, Polynomial, Staleness

__all__ = [
    "Asynchronous",
    "Clock",
    "Constant",
    "DynamicExponential",
    "FixedExponential",
    "FixedSpeeds",
    "Flight",
    "Hinge",
    "Ledger",
    "Participation",
    "Polynomial",
    "ServerUpdate",
    "Speeds",
    "Staleness",
    "Times",
    "TwoPopulation",
    "UniformTime",
    "model_bits",
]
