"""DePRL's Figures 8 and 9: local epochs and numbers of clients; and no figure's, samples of new clients."""

from collections.abc import Iterator, Mapping, Sequence

from matplotlib.figure import Figure

from pfl_lightning.report import save_figure
from pfl_lightning.report.drawing import grid
from pfl_lightning.report.style import looks_of
from pfl_lightning.report.tables import markdown
from reproduction.claims import Claim, Floats, deviation, ours, spread, trend
from reproduction.deprl.newcomers import CLIENTS as NEW_CLIENTS
from reproduction.deprl.newcomers import new_accuracy
from reproduction.deprl.orderings import NAMES, best_claim
from reproduction.deprl.runs import GOSSIP, SERVER, MethodName, clients, curves, final, folder, sweep
from reproduction.runs import Place, publish

ALPHA = 0.3  # the paper's is not known, nor is its graph; ours is the ring
EPOCHS = (1, 2, 3, 4, 5)
EPOCHS_KEY: Mapping[str, str] = {"d-psgd": "model.epochs", "dispfl": "model.epochs", "deprl": "model.head_epochs"}
USUAL_EPOCHS = 2
CLIENTS = {"small": (8, 16, 32, 64), "full": (16, 32, 64, 128)}
NEW_SAMPLES = (5, 10, 20, 50)

Found = Mapping[MethodName, Sequence[Floats]]  # accuracies in % for each value, [seeds]


def fig8_claims(place: Place) -> list[Claim]:
    """Figure 8: DePRL is best for any number of epochs (of its heads), and the better the more it has."""
    found = ablation(place, EPOCHS_KEY, EPOCHS, USUAL_EPOCHS)
    show(place, "fig8", "local epochs", EPOCHS, found)
    rises = trend(f"DePRL: {', '.join(map(str, EPOCHS))} epochs on the head (%)", found["deprl"], "rises")
    return [*best_everywhere("epochs", EPOCHS, found), rises]


def fig9_claims(place: Place) -> list[Claim]:
    """Figure 9: DePRL is best for any number of clients."""
    values = CLIENTS[place.scale]
    found = ablation(place, dict.fromkeys(GOSSIP, "data.num_clients"), values, usual=clients(place))
    show(place, "fig9", "clients", values, found)
    return list(best_everywhere("clients", values, found))


def new_samples_claims(place: Place) -> list[Claim]:
    """DePRL's body is best for new clients with any number of samples, which the paper does not ask."""
    methods, number = (*GOSSIP, *SERVER), NEW_CLIENTS[place.scale]
    trained = curves(place, [sweep(place, method, ("Ring",), (ALPHA,)) for method in methods])
    bodies = {method: trained[folder(method, "Ring", ALPHA)] for method in methods}
    found = {method: [new_accuracy(curve, number, most) for most in NEW_SAMPLES] for method, curve in bodies.items()}
    show(place, "new_samples", "samples of a new client", NEW_SAMPLES, found)
    return ours(best_everywhere("samples of a new client", NEW_SAMPLES, found))


def ablation(place: Place, keys: Mapping[str, str], values: Sequence[int], usual: int) -> Found:
    """Train the gossip methods on the ring with each value of a setting, and measure them at the end.

    Args:
        place: The data set.
        keys: The setting of each method.
        values: The values.
        usual: The value of Table 1, whose runs serve.
    """
    others = [value for value in values if value != usual]
    usually = [sweep(place, method, ("Ring",), (ALPHA,)) for method in GOSSIP]
    varied = [sweep(place, method, ("Ring",), (ALPHA,), {keys[method]: others}) for method in GOSSIP]
    trained = curves(place, [*usually, *varied])

    def measure(method: MethodName, value: int) -> Floats:
        return final(trained[folder(method, "Ring", ALPHA, {} if value == usual else {keys[method]: value})])

    return {method: [measure(method, value) for value in values] for method in GOSSIP}


def best_everywhere(name: str, values: Sequence[int], found: Found) -> Iterator[Claim]:
    """With each value, DePRL is above the others."""
    for position, value in enumerate(values):
        yield best_claim(f"{value} {name}", {method: each[position] for method, each in found.items()})


def show(place: Place, item: str, name: str, values: Sequence[int], found: Found) -> None:
    """Print, write and draw all accuracies."""
    rows = [[value, *map(spread, row)] for value, *row in zip(values, *found.values(), strict=True)]
    title = f"{place.pair}, {place.scale} scale, ring, alpha {ALPHA}: mean test accuracy after the last round (%)"
    publish(place, item, markdown(title, [name, *(NAMES[method] for method in found)], rows))
    save_figure(ablation_figure(name, values, found), place.folder / f"{item}.png")


def ablation_figure(name: str, values: Sequence[int], found: Found) -> Figure:
    """Accuracies against the values of a setting; bars are one standard deviation over the seeds."""
    with grid(4, 2.6, 1, 1) as (figure, ((axes,),)):
        labels = [NAMES[method] for method in found]
        for each, label, look in zip(found.values(), labels, looks_of(labels), strict=True):
            deviations = [deviation(value) for value in each]
            means = [float(value.mean()) for value in each]
            axes.errorbar(values, means, deviations, capsize=2, label=label, **look)
        axes.set(xlabel=name, ylabel="test accuracy (%)\nmean over clients", xticks=values)
        figure.legend(loc="outside right center")
    return figure
