import lightning.pytorch as pl
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.custom_scalar.layout_pb2 import (
    Category,
    Chart,
    Layout,
    MarginChartContent,
    MultilineChartContent,
)
from tensorboard.plugins.custom_scalar.metadata import CONFIG_SUMMARY_TAG, PLUGIN_NAME

from pfl_lightning.callbacks.board import boards, tag_of
from pfl_lightning.callbacks.evaluation import is_new
from pfl_lightning.callbacks.percentile_errors import PercentileErrors
from pfl_lightning.methods import Method, method_of
from pfl_lightning.quantity import Quantity, headline

QUARTILES = (25, 50, 75)
Series = MarginChartContent.Series


class ScoreCharts(pl.Callback):
    """Lays out TensorBoard's tab *Custom Scalars*: how the test scores are spread over the clients.

    One chart has the headline of every method. Each evaluated model has a chart with the median, the quartiles around
    it, and the worst client. TensorBoard draws the charts of all runs that are chosen at its left into one, if they
    have the same title. The quartiles are those of ``PercentileErrors``; without them there are no such charts.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Define the charts at the start of a new run."""
        if is_new(trainer):
            callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
            known = [set(callback.percentiles) for callback in callbacks if isinstance(callback, PercentileErrors)]
            layout = layout_for(method_of(pl_module), any(percentiles.issuperset(QUARTILES) for percentiles in known))
            for board in boards(trainer):
                board.experiment._get_file_writer().add_summary(summary_of(layout))


def layout_for(method: Method, has_quartiles: bool) -> Layout:
    """The charts of a method's test scores.

    Args:
        method: The method, built for its data.
        has_quartiles: Whether quartiles are logged.
    """
    models = method.eval_models
    quantity = method.evaluator.scores[f"test/{models[0]}"].quantity
    charts = [_lines(f"{headline('test', quantity)} of every method", f"^{headline('test', quantity)}$")]
    if has_quartiles:
        charts += [_band(model, quantity) for model in models]
        charts.append(_lines("median of every model", f"^{tag_of(f'test/[^/]+/{quantity.name}/p50')}$"))
    return Layout(category=[Category(title=f"test {quantity.name} of the clients", chart=charts)])


def summary_of(layout: Layout) -> Summary:
    """A layout as TensorBoard reads it."""
    text = TensorProto(dtype="DT_STRING", string_val=[layout.SerializeToString()], tensor_shape=TensorShapeProto())
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=PLUGIN_NAME))
    return Summary(value=[Summary.Value(tag=CONFIG_SUMMARY_TAG, tensor=text, metadata=metadata)])


def _lines(title: str, pattern: str) -> Chart:
    return Chart(title=title, multiline=MultilineChartContent(tag=[pattern]))


def _band(model: str, quantity: Quantity) -> Chart:
    """The median between the quartiles, and the worst client below them, or above them for a loss."""
    name = f"test/{model}/{quantity.name}"
    low, middle, high = (tag_of(f"{name}/p{percentile}") for percentile in QUARTILES)
    worst = f"{name}/worst"
    edges = {"lower": worst, "upper": low} if quantity.higher_is_better else {"lower": high, "upper": worst}
    series = [Series(value=middle, lower=low, upper=high), Series(value=worst, **edges)]
    return Chart(title=f"{model}: median, quartiles, worst", margin=MarginChartContent(series=series))
