from collections.abc import Callable
from functools import partial

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor

from pfl_lightning.callbacks.client_tables import gathered, written
from pfl_lightning.callbacks.figures import show_figure
from pfl_lightning.callbacks.round_csv import csv_text
from pfl_lightning.callbacks.run_folder import folder_of
from pfl_lightning.client import Engine, Examples
from pfl_lightning.data import federated
from pfl_lightning.data.clients import ClientTable
from pfl_lightning.methods import Method, method_of
from pfl_lightning.metrics import ClientScore
from pfl_lightning.report import by_largest_class, cross_site_figure
from pfl_lightning.report.run_files import Floats
from pfl_lightning.tasks import Classification
from pfl_lightning.tree import Params, Tree

CELL = "cross_site"
MODEL = "model of"  # first column of the file


class CrossSite(pl.Callback):
    """Scores every client's model on every client's test samples, after the last round and in ``pfl test``.

    So one sees what personalization costs elsewhere. Of each evaluated model it logs the mean of the clients' scores on
    their ``own`` samples and on those of ``others``, as ``cross_site/finetuned/own``. The file
    ``cross_site_finetuned.csv`` has a row for each client's model and a column for each client's samples, and the
    figure ``cross_site/finetuned`` shows it. It takes as long as so many evaluations as there are clients.
    """

    def __init__(self) -> None:
        self.matrices: dict[str, Floats] = {}

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Have the clients' models scored everywhere, if this is the last evaluation."""
        if trainer.state.fn == "fit" and trainer.global_step < trainer.max_steps:
            return
        method = method_of(pl_module)
        for model in method.evaluated_models:
            score = CrossSiteScore(method, model, federated(trainer).tables["test"])
            method.evaluator.measures[f"{model}/{CELL}"] = score.to(method.device)

    on_test_epoch_start = on_validation_epoch_start

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log what the scores say, write them, and draw them."""
        method = method_of(pl_module)
        for model in method.evaluated_models:
            if f"{model}/{CELL}" not in method.evaluator.measures:
                return
            matrix = method.evaluator.measures.pop(f"{model}/{CELL}").matrix()
            own = np.eye(len(matrix), dtype=bool)
            means = {"own": matrix[own], "others": matrix[~own]}
            for name, values in means.items():
                if not np.isnan(values).all():
                    method.log(f"{CELL}/{model}/{name}", float(np.nanmean(values)))
            self.matrices[model] = matrix
            self._show(trainer, method, model)

    on_test_epoch_end = on_validation_epoch_end

    def _show(self, trainer: pl.Trainer, method: Method, model: str) -> None:
        """Write and draw the scores of a model."""
        data = federated(trainer)
        names = [*data.client_names] or [str(client) for client in range(data.eval_clients)]
        matrix = self.matrices[model]
        has_classes = isinstance(method.task, Classification)
        order = by_largest_class(data.class_counts()["train"]) if has_classes else np.arange(len(matrix))
        figure = cross_site_figure(matrix, order, method.task.score, model)
        show_figure(trainer, f"{CELL}/{model}", figure, method.accounting.clock.rounds)
        if trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            defined = [{names[site]: row[site] for site in np.flatnonzero(~np.isnan(row))} for row in matrix]
            rows = [{MODEL: name, **scores} for name, scores in zip(names, defined, strict=True)]
            written(csv_text([MODEL, *names], rows, header=True), folder_of(trainer) / f"{CELL}_{model}.csv")


class CrossSiteScore(ClientScore):
    """The score of each client's model on the samples of each client.

    Args:
        method: The method.
        model: One of its evaluated models.
        table: The samples.
    """

    def __init__(self, method: Method, model: str, table: ClientTable) -> None:
        self.sites = len(table)
        super().__init__(self.sites**2, method.task)
        self.measure = partial(cross_site_sums, partial(method.engine_of, model), method.device, table)
        self.held = table.counts

    def update(self, ids: Tensor, sums: Tree) -> None:  # type: ignore[override]
        """Add the models of some clients.

        Args:
            ids: Client ids, ``[clients]``.
            sums: Sums over the samples of each site, ``[clients or 1, sites, ...]``; see ``cross_site_sums``.
        """
        places = ids[:, None] * self.sites + torch.arange(self.sites, device=ids.device)
        expanded = {name: stack.expand(len(ids), *stack.shape[1:]).flatten(0, 1) for name, stack in sums.items()}
        super().update(places.flatten(), self.held.to(ids.device).repeat(len(ids)), expanded)

    def matrix(self) -> Floats:
        """The scores of all models, ``[clients, sites]``; nan where a score is not defined."""
        scores = gathered(self)
        values = np.full(self.sites**2, np.nan)
        values[scores.ids.cpu().numpy()] = self.values(scores).double().cpu().numpy()
        return values.reshape(self.sites, self.sites)


def cross_site_sums(
    engine_of: Callable[[Params], Engine], device: torch.device, table: ClientTable, params: Params
) -> Tree:
    """What some models get on the samples of all sites: the sums that their scores are made of.

    Args:
        engine_of: What predicts with the models.
        device: Where they are.
        table: The samples of all sites.
        params: The models, ``[models, ...]``, or one that all clients share.

    Returns:
        Sums over the samples of each site, by name, ``[models, sites, ...]``.
    """
    engine = engine_of(params)
    models = len(next(iter(params.own.values()))) if params.own else 1
    holders = torch.arange(len(table)).repeat_interleave(table.counts).to(device)
    ids, counts = torch.arange(models), torch.full((models,), len(holders))
    examples = Examples(table.samples, ids, table.flat[:-1].expand(models, -1), counts, ids).to(device, engine.dtype)
    totals: Tree = {}
    start = 0
    for predictions in engine.predictions(examples, params):
        for name, values in engine.statistics(predictions).items():
            if name not in totals:
                totals[name] = values.new_zeros(models, len(table), *values.shape[2:])
            totals[name].index_add_(1, holders[start : start + values.shape[1]], values)
        start += predictions.outputs.shape[1]
    return totals
