"""Figures in TensorBoard and other loggers that take them."""

from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from pfl_lightning.callbacks.board import Board, tag_of, tensorboards
from pfl_lightning.callbacks.client_tables import PercentileErrors, gathered
from pfl_lightning.callbacks.evaluation import callbacks_of, is_new
from pfl_lightning.data import FederatedDataModule, federated
from pfl_lightning.methods import Method, method_of
from pfl_lightning.methods.families.gossip import Gossip
from pfl_lightning.report import neighbours_figure, partition_card, scatter_figure, topology_figure
from pfl_lightning.score_kind import ACCURACY, headline
from pfl_lightning.server import MixingMatrix

DPI = 150  # of figures with small text
CARD_DPI = 200  # of a figure of 4.5 x 3.4 inches
EDGES = torch.linspace(0, 1, 21).tolist()  # bin edges for errors
QUARTILES = (25, 50, 75)
MOST_DRAWN = 1000  # clients whose links are drawn
Charts = dict[str, list[object]]


class RunFigures(pl.Callback):
    """Shows what every run has to show beside its scalars.

    - At the start of a new run: ``data/partition``, how the data is split among the clients; ``topology``, who mixes
      models with whom in a method without a server, in the first round; and TensorBoard's tab *Custom Scalars*, how the
      test scores are spread over the clients. Its charts draw all runs that are chosen at the left into one, if they
      have the same title; the quartiles are those of ``PercentileErrors``.
    - At the first and at the last evaluation, for each evaluated model: the clients' test errors (losses for a
      regression) in TensorBoard's tab *Histograms*, and the figure ``test/global/error_by_samples``, each client's
      error against its number of samples; of training samples, if these are evaluated (``data.eval_train``),
      the losses and ``train/global/loss_by_samples``. Not at each evaluation: they would take a quarter of a short run.
      A run that is extended keeps those of its former end.
    """

    def __init__(self) -> None:
        self.scores: dict[str, tuple[Tensor, Tensor]] = {}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show how the data is split, who mixes with whom, and the charts."""
        if not is_new(trainer):
            return
        data = federated(trainer)
        method = method_of(pl_module)
        tables = callbacks_of(trainer, PercentileErrors)
        charts = charts_for(method, any(set(QUARTILES) <= set(table.percentiles) for table in tables))
        for logger in tensorboards(trainer):
            logger.experiment.add_custom_scalars({"test scores of the clients": charts})
        if figure_loggers(trainer):
            partition = partition_card(data.class_counts(), type(data).__name__)
            show_figure(trainer, "data/partition", partition, 0)
            if graph := graph_figure(method, data):
                show_figure(trainer, "topology", graph, 0)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep the scores before the module resets its metrics, and show those of the first evaluation."""
        method = method_of(pl_module)
        self.scores = {}
        for name, metric in method.evaluator.scores.items():
            if name.startswith(("test/", "train/")):
                scores = gathered(metric)
                values = metric.values(scores)
                finite = values.isfinite()  # in a run that diverges, not those of all clients
                self.scores[name] = scores.samples[finite], values[finite]
        if trainer.global_step == 0:
            self._show(trainer, method)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the scores of the last evaluation."""
        self._show(trainer, method_of(pl_module))

    def _show(self, trainer: pl.Trainer, method: Method) -> None:
        rounds = method.accounting.clock.rounds
        for name, (samples, values) in self.scores.items() if figure_loggers(trainer) else ():
            if not len(samples):
                continue
            score_kind = method.evaluator.scores[name].score_kind
            tag = f"{name}/{score_kind.error_name}"
            bins = EDGES if score_kind == ACCURACY else "auto"
            for board in tensorboards(trainer):
                board.experiment.add_histogram(tag, score_kind.errors(values), rounds, bins)
            figure = scatter_figure(samples.cpu().numpy(), values.cpu().numpy(), score_kind, name.partition("/")[0])
            show_figure(trainer, f"{tag}_by_samples", figure, rounds, dpi=CARD_DPI)


def charts_for(method: Method, has_quartiles: bool) -> Charts:
    """The charts of a method's test scores, by title, as ``SummaryWriter.add_custom_scalars`` takes them.

    Args:
        method: The method, built for its data.
        has_quartiles: Whether quartiles are logged.
    """
    models = method.eval_models
    score_kind = method.evaluator.scores[f"test/{models[0]}"].score_kind
    charts: Charts = {
        f"{headline('test', score_kind)} of every method": ["Multiline", [f"^{headline('test', score_kind)}$"]],
        "worst client of every model": ["Multiline", [f"^test/[^/]+/{score_kind.name}/worst$"]],
    }
    if has_quartiles:
        median = tag_of(f"test/[^/]+/{score_kind.name}/p50")
        charts["median of every model"] = ["Multiline", [f"^{median}$"]]
        for model in models:
            low, middle, high = (tag_of(f"test/{model}/{score_kind.name}/p{percentile}") for percentile in QUARTILES)
            charts[f"{model}: median and quartiles"] = ["Margin", [middle, low, high]]
    return charts


def graph_figure(method: Method, data: FederatedDataModule) -> Figure | None:
    """The graph of a method's first round on a data set; None if the method has a server.

    Every client is a pie of the classes of its training samples. Of more than 1,000 clients, the figure shows how many
    neighbours they have: the spectral gap would take minutes.

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
    if clients > MOST_DRAWN:
        return neighbours_figure(graph, title)
    gap = MixingMatrix.between(graph, list(range(clients)), method.mixing).spectral_gap
    counts = data.class_counts()["train"][:clients]
    return topology_figure(graph, counts, f"{title}, spectral gap {gap:.2g} ({method.mixing})")


def show_figure(trainer: pl.Trainer, tag: str, figure: Figure, step: int, dpi: int = DPI) -> None:
    """Show a figure in every logger of this run that takes figures.

    These are TensorBoard's, MLflow's, and all that have ``log_image(key, images, step)`` as W&B's has. There are none
    in the processes that do not log.

    Args:
        trainer: The trainer, which has the loggers.
        tag: Name of the figure, such as ``data/partition``.
        figure: The figure.
        step: Rounds completed.
        dpi: Pixels per inch.
    """
    figure.set_dpi(dpi)
    for logger in figure_loggers(trainer):
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.add_figure(tag_of(tag) if isinstance(logger, Board) else tag, figure, step)
        elif isinstance(logger, MLFlowLogger):  # it keeps figures as files, without steps
            logger.experiment.log_figure(logger.run_id, figure, f"{tag}/{step:06}.png")
        else:
            logger.log_image(tag, [pixels(figure)], step=step)


def figure_loggers(trainer: pl.Trainer) -> list[Any]:
    """The loggers that show figures; none in the processes that do not log."""
    if not trainer.is_global_zero:
        return []
    supported = (TensorBoardLogger, MLFlowLogger)
    return [log for log in trainer.loggers if isinstance(log, supported) or hasattr(log, "log_image")]


def pixels(figure: Figure) -> np.ndarray:
    """A figure as an image, ``[height, width, 3]`` of bytes."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
