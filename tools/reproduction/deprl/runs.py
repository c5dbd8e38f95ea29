"""The runs behind DePRL's tables and figures.

The runs of a data set share one folder, so that tables and figures which need the same ones train them once.
"""

import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, get_args

from pfl_lightning.report import Curve
from reproduction.claims import Floats
from reproduction.runs import CONFIGS, Place, Scale, Sweep, data_options, trained

MethodName = Literal["d-psgd", "dispfl", "deprl", "fedavg", "fedrep", "ditto", "fedrod"]
Graph = Literal["Ring", "ErdosRenyi", "Complete"]

DATA = ("cifar100", "cifar10", "fashion_mnist", "harbox")
GRAPHS: tuple[Graph, ...] = get_args(Graph)
ALPHAS = (0.1, 0.3, 0.5)
GOSSIP: tuple[MethodName, ...] = ("d-psgd", "dispfl", "deprl")
SERVER: tuple[MethodName, ...] = ("fedavg", "fedrep", "ditto", "fedrod")
EVALUATED: Mapping[str, str] = {"fedavg": "global", "ditto": "personal", "fedrod": "personal"}  # others: stored
SEEDS: Mapping[Scale, Sequence[int]] = {"small": [1, 2, 3], "two_cores": [1, 2, 3], "full": [1, 12, 123, 1234]}
ROUNDS, CLIENTS = 200, 128
CUTS = {"small": "--trainer.val_check_interval=4"}
CUTS["two_cores"] = "--trainer.val_check_interval=20 --model.epoch_steps=10"
SMALL_ROUNDS, SMALL_CLIENTS = {"fashion_mnist": 40, "cifar10": 20}, {"fashion_mnist": 32, "cifar10": 16}

# networks that take one CPU core half a minute; without clipping the linear layers of the MLP are faster
SMALL: Mapping[str, str] = {
    "fashion_mnist": "models/mlp.yaml --model.network.hidden=[100] --data.size=28 --model.epoch_steps=20",
    "cifar10": "models/lenet5.yaml --model.network.channels=[16,32] --model.epoch_steps=6",
}

# epochs of a round: 2 on the whole model, or 2 on the head before 1 on the body
OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(("d-psgd", "dispfl", "fedavg"), "--model.epochs=2"),
    **dict.fromkeys(("deprl", "fedrep"), "--model.head_epochs=2"),
    **dict.fromkeys(("ditto", "fedrod"), "--model.epochs=2 --model.personal_epochs=1"),
}


def fit_options(place: Place) -> list[str]:
    """Options of ``pfl fit`` for all runs of a data set."""
    file = f"--config={CONFIGS}/papers/deprl/{place.pair}.yaml"
    own = cut(place) if place.scale != "full" else []
    return [file, *own, *data_options(place.root, place.pair)]


def cut(place: Place) -> list[str]:
    """A small network; at small scale also few clients and few rounds, on two cores short local epochs."""
    sizes = f"--data.num_clients={clients(place)} --trainer.max_steps={rounds(place)}"
    network = f"--config={CONFIGS}/{SMALL[place.pair]} --model.clip_norm=null"
    return shlex.split(f"{network} {sizes} {CUTS[place.scale]}")


def rounds(place: Place) -> int:
    """Rounds of Table 1."""
    return SMALL_ROUNDS[place.pair] if place.scale == "small" else ROUNDS


def clients(place: Place) -> int:
    """Clients in Table 1."""
    return SMALL_CLIENTS[place.pair] if place.scale == "small" else CLIENTS


def sweep(
    place: Place,
    method: MethodName,
    graphs: Sequence[Graph] = GRAPHS,
    alphas: Sequence[float] = ALPHAS,
    vary: Mapping[str, Sequence[Any]] = MappingProxyType({}),
    options: Sequence[str] = (),
) -> Sweep:
    """Runs of a method on some graphs, which methods with a server have not, with some concentrations.

    Args:
        place: The data set.
        method: The method.
        graphs: The graphs.
        alphas: Concentrations of the Dirichlet draws.
        vary: What varies beside them.
        options: More options of ``pfl fit``.
    """
    masks = [f"--model.drop_rounds={rounds(place)}"] if method == "dispfl" else []
    return Sweep((method,), varied(method, graphs, alphas, vary), [*OPTIONS[method].split(), *masks, *options])


def varied(
    method: MethodName, graphs: Sequence[Graph], alphas: Sequence[float], vary: Mapping[str, Sequence[Any]]
) -> dict[str, Sequence[Any]]:
    """The settings that vary, by their keys."""
    topology: dict[str, Sequence[Any]] = {"model.topology": graphs} if method in GOSSIP else {}
    return {**topology, "data.partition.alpha": alphas, **vary}


def folder(method: MethodName, graph: Graph, alpha: float, vary: Mapping[str, Any] = MappingProxyType({})) -> str:
    """The folder of some runs that differ in their seeds."""
    return Sweep((method,), varied(method, (graph,), (alpha,), {key: (value,) for key, value in vary.items()})).names[0]


def curves(place: Place, sweeps: Sequence[Sweep]) -> dict[str, Curve]:
    """Train all runs of some sweeps, and read them: a curve for each folder, by its name.

    Raises:
        SystemExit: If a run fails.
    """
    found = trained(place, sweeps)
    return {name: Curve(runs, evaluated(name)) for name, runs in found.items()}


def evaluated(name: str) -> str:
    """The model that a folder's clients are evaluated by."""
    return EVALUATED.get(name.partition(",")[0], "stored")


def final(curve: Curve) -> Floats:
    """Mean test accuracy of the clients in % after the last round, ``[seeds]``."""
    return 100 * curve.means[:, -1]
