import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.trainer.states import TrainerFn
from rich.console import Console
from rich.table import Table
from torch import Tensor

from pfl_lightning import processes
from pfl_lightning.callbacks.board import tensorboards
from pfl_lightning.callbacks.client_tables import EvaluationTable
from pfl_lightning.callbacks.evaluation import callbacks_of
from pfl_lightning.callbacks.monitors import early_stop
from pfl_lightning.callbacks.run_folder import folder_of
from pfl_lightning.data import FederatedDataModule, federated
from pfl_lightning.data.holdout import Split
from pfl_lightning.data.own.raw_data import shown
from pfl_lightning.errors import printable
from pfl_lightning.methods import Method, method_of
from pfl_lightning.metrics import ClientScore, client_percentiles, density
from pfl_lightning.score_kind import APART, LOSS, ScoreKind
from pfl_lightning.server import DPAggregator
from pfl_lightning.tasks import Classification, Task

COLUMNS = ("mean", "worst", "p10", "p50", "p90")


class RunSummary(pl.Callback):
    """Prints the final scores, what targets are but classes, the density of sparse models, the time and the run folder.

    The 10th, 50th and 90th percentile come from ``PercentileErrors``; columns of percentiles that it does not log are
    empty. Further columns have the score of all samples ``pooled``, where it is none of theirs, the means of the
    attackers and of what a ``backdoor`` does, and count the clients without a value (``left out``), if there are any.

    Args:
        verbose: Whether it says how each layer was trained, too.
    """

    def __init__(self, verbose: bool = False) -> None:
        self.verbose = verbose

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Say which share of the samples ``data.max_samples`` keeps, as it is set in configs of large data sets."""
        data = federated(trainer)
        limit = data.max_samples
        counts = [table.counts for table in data.tables.values()]
        if trainer.is_global_zero and limit is not None and max(int(count.max()) for count in counts) == limit:
            used = sum(int(count.sum()) for count in counts)
            share = f"{used:,} of {len(data.tables['train'].samples.targets):,} samples"
            sys.stderr.write(f"pfl: note: data.max_samples: {limit} keeps {share}; null keeps all\n")

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Print the test scores after the last round."""
        folder = folder_of(trainer)
        if trainer.is_global_zero:
            self._print(trainer, "test", self._training_facts(trainer, method_of(pl_module), folder))

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Print the scores of a checkpoint, unless the evaluation is part of a training run."""
        if trainer.is_global_zero and trainer.state.fn != TrainerFn.FITTING:
            tables = [("Each client", table.path) for table in callbacks_of(trainer, EvaluationTable)]
            facts = [(name, str(fact)) for name, fact in (("Checkpoint", trainer.ckpt_path), *tables) if fact]
            self._print(trainer, "val" if trainer.state.fn == TrainerFn.VALIDATING else "test", facts)

    on_test_end = on_validation_end

    def _training_facts(self, trainer: pl.Trainer, method: Method, folder: Path) -> Iterator[tuple[str, str]]:
        """Names and texts of what to print about a finished run."""
        if reason := early_stop(trainer):
            yield "Stopped early", f"after round {trainer.global_step} of {trainer.max_steps}: {reason}"
        choices = [choice for own in method.architectures for choice in own.engine.choices.items()]
        for layers, choice in choices if self.verbose else ():
            yield "Engine", f"{layers}: {choice}"
        if not isinstance(method.task, Classification):
            yield "Targets", method.task.goal
        for pattern, names in method.parts.patterns.items():
            yield "Matched", f"{pattern}: {shown(names)}"
        if processes.count() > 1:
            rows = len(method.clients.shard.ids())
            size = method.clients.nbytes / 1e6
            yield "Processes", f"{processes.count()}; the first one has the rows of {rows:,} clients, {size:,.1f} MB"
        clock = method.accounting.clock
        yield "Simulated time", f"{clock.compute:,.1f} s computing, {clock.total:,.1f} s in all"
        epsilon = trainer.callback_metrics.get("privacy/epsilon")
        if isinstance(method.aggregator, DPAggregator) and epsilon is not None:
            yield "Privacy", f"epsilon {float(epsilon):.3g} at delta {method.aggregator.delta:g}, for each client"
        if method.sparsity.is_on and (shared := method.shared_parameters):
            threshold = method.sparsity.threshold
            share = density(shared.values(), threshold)
            yield "Density", f"{share:.2%} of the shared parameters (those above {threshold:g})"
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            yield "Run folder", str(folder)
        for board in tensorboards(trainer):
            yield "Watch it", shlex.join(["tensorboard", "--logdir", str(board.save_dir)])

    def _print(self, trainer: pl.Trainer, split: Split, facts: Iterable[tuple[str, str]]) -> None:
        """Print one table for the score and one for each other metric, and then a line for each fact."""
        console = Console(markup=False, emoji=False)
        method = method_of(trainer.lightning_module)
        name = f"{split}/{method.evaluated_models[0]}"
        others = [metric.score_kind for key, metric in method.evaluator.others.items() if key.startswith(f"{name}/")]
        for score_kind in (method.evaluator.scores[name].score_kind, *others):
            console.print(self._table(trainer, method, split, score_kind))
        for title, fact in facts:
            console.print(f"{title + ':':<15} {printable(fact)}", soft_wrap=True)

    def _table(self, trainer: pl.Trainer, method: Method, split: Split, score_kind: ScoreKind) -> Table:
        evaluated = "New clients" if federated(trainer).new_clients else "Clients"
        title = f"{evaluated}' {split} {score_kind.label} after round {method.accounting.clock.rounds}"
        table = Table("model", *COLUMNS, title=title, title_justify="left")
        found = trainer.callback_metrics
        models = method.evaluated_models
        keys = {"pooled": f"{split}/{{}}/{score_kind.name}/pooled"}
        keys |= {apart: f"{apart}/{{}}/{score_kind.name}/mean" for apart in APART}
        further = {column: key for column, key in keys.items() if any(key.format(model) in found for model in models)}
        left_out = {model: int(found.get(f"{split}/{model}/{score_kind.name}/left_out", 0)) for model in models}
        counts_left_out = any(left_out.values())
        for column in (*further, *["left out"] * counts_left_out):
            table.add_column(column)
        for model in models:
            values = [found.get(f"{split}/{model}/{score_kind.name}/{column}") for column in COLUMNS]
            values += [found.get(key.format(model)) for key in further.values()]
            shown = ("" if value is None else score_kind.show(float(value)) for value in values)
            table.add_row(model, *shown, *([str(left_out[model])] if counts_left_out else []))
        if score_kind == method.task.score:
            for name, summary in _guesses(federated(trainer), method.task, split).items():
                values = [summary.get(column) for column in (*COLUMNS, *further)]
                shown = ("" if value is None else score_kind.show(float(value)) for value in values)
                table.add_row(name, *shown, *[str(int(summary.get("left_out", 0)))] * counts_left_out)
        return table


def _guesses(data: FederatedDataModule, task: Task, split: Split) -> dict[str, dict[str, Tensor]]:
    """The scores of predictions without training over the clients."""
    guesses = data.guesses()
    if not guesses:
        return {}
    table = data.tables[split]
    places = table.flat[:-1]
    holders = torch.arange(len(table)).repeat_interleave(table.counts)
    targets = table.samples.targets[places].cpu()
    summaries = {}
    for name, outputs in guesses.items():
        metric = ClientScore(len(table), task)
        rows = task.statistics(outputs[places], targets) | {LOSS.name: task.losses(outputs[places], targets)}
        metric.update(holders, torch.ones_like(holders), rows)
        values, samples = metric.defined(metric.scores())
        summaries[name] = metric.compute() | client_percentiles(values, samples, (10, 50, 90))
    return summaries
