"""A task of the user's own, whose score no part of the library has heard of."""

from functools import partial

import pandas as pd
import torch
from fakes.tasks import Copies

from pfl_lightning import Experiment
from pfl_lightning.data import Digits
from pfl_lightning.methods import FedAvg
from pfl_lightning.models import MLP
from pfl_lightning.report import read_run
from pfl_lightning.report.compare_curves import curves_of
from pfl_lightning.report.compare_tables import final_table


class Zeros(Digits):
    """Digits of which only the zeros count; most clients have none."""

    task = Copies().sized(10)

    def load(self):
        for split in super().load():
            yield split and split._replace(targets=torch.stack([split.targets, (split.targets == 0).long()], 1))


def test_its_score_is_shown_logged_and_reported_and_clients_without_it_are_left_out(in_an_empty_folder):
    data = Zeros()
    data.setup()
    run = Experiment(FedAvg(network=partial(MLP, hidden=(4,))), data, rounds=2).fit()
    test = data.tables["test"].examples(torch.arange(20))
    amounts = (test.targets(test.positions)[..., 1] * test.present).sum(1)
    defined = amounts.nonzero()[:, 0].tolist()
    assert 0 < len(defined) < 20
    record = read_run(run.folder)
    assert record.score_kind == Copies.score
    clients = record.clients["test", "global", 2]
    assert clients["client"].tolist() == defined
    logged = pd.read_csv(run.folder / "metrics.csv").set_index("round").loc[2]
    assert logged["test/global/hits/left_out"] == 20 - len(defined)
    assert abs(logged["test/global/hits/mean"] - clients["hits"].mean()) < 1e-6
    assert logged["test/hits"] == logged["test/global/hits/mean"]
    assert logged["test/global/hits/worst"] == clients["hits"].min()
    assert abs(logged["test/global/hits/p50"] - clients["hits"].median()) < 1e-6
    assert "Clients' test hits (of 10) at the last evaluation" in final_table(curves_of([record])).text
