from pfl_lightning.system.asynchronous import (
    Asynchronous,
    Constant,
    Flight,
    Hinge,
    Polynomial,
    ServerUpdate,
    Staleness,
)
from pfl_lightning.system.attackers import Attackers
from pfl_lightning.system.clock import Clock
from pfl_lightning.system.ledger import Ledger
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

__all__ = [
    "Asynchronous",
    "Attackers",
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
]
