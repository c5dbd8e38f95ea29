import lightning.pytorch as pl
from matplotlib.figure import Figure

from pfl_lightning.callbacks.evaluation import is_new
from pfl_lightning.callbacks.figures import painters, show_figure
from pfl_lightning.data import FederatedDataModule, federated
from pfl_lightning.methods import Method, method_of
from pfl_lightning.methods.families.gossip import Gossip
from pfl_lightning.report import neighbours_figure, topology_figure
from pfl_lightning.server import MixingMatrix

DRAWN = 1000  # most clients whose links are drawn


class TopologyFigure(pl.Callback):
    """Shows who mixes models with whom in a method without a server, as the figure ``topology``.

    Every client is a pie of the classes of its training samples. If graphs are redrawn, it is the one of the first
    round. Other methods have no such figure.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw the figure at the start of a new run."""
        if not is_new(trainer) or not painters(trainer):
            return
        if figure := graph_figure(method_of(pl_module), federated(trainer)):
            show_figure(trainer, "topology", figure, 0)


def graph_figure(method: Method, data: FederatedDataModule) -> Figure | None:
    """The graph of a method's first round on a data set; None if the method has a server.

    Of more than 1,000 clients, the figure shows how many neighbours they have: the spectral gap would take minutes.

    Args:
        method: The method; it need not be built.
        data: The data set, after its ``setup``.

    Raises:
        PflError: If there is no such graph, or the mixing is not possible with it.
    """
    if not isinstance(method, Gossip):
        return None
    clients = data.num_clients
    graph = method.topology.graph(clients, data.seed)
    title = f"{type(method.topology).__name__}: {clients:,} clients, {graph.number_of_edges():,} links"
    if clients > DRAWN:
        return neighbours_figure(graph, title)
    gap = MixingMatrix.between(graph, list(range(clients)), method.mixing).spectral_gap
    counts = data.class_counts()["train"][:clients]
    return topology_figure(graph, counts, f"{title}, spectral gap {gap:.2g} ({method.mixing})")
