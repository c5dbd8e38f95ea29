import re
from functools import partial

import pytest
from fakes.methods import TINY, small
from torchmetrics.classification import MulticlassAUROC, MulticlassF1Score

from pfl_lightning.callbacks import ClientMetrics, RunSummary
from pfl_lightning.methods import FedPer


# of the six clients' 1, 4, 9, 16, 25 and 36 samples for training, and a quarter as many for validation and for tests
@pytest.mark.parametrize("most", [5, 1000])
def test_a_note_says_how_many_samples_are_kept(most, ragged_data, fit, capsys):
    data = ragged_data(max_samples=most)
    fit(small(), data, 1, callbacks=[RunSummary()])
    kept = sum(int(table.counts.sum()) for table in data.tables.values())
    there = len(data.tables["train"].samples.targets)
    note = f"pfl: note: data.max_samples: {most} keeps {kept} of {there} samples; null keeps all\n"
    assert capsys.readouterr().err == (note if most == 5 else "")


def test_names_of_folders_are_printed_as_they_are_and_tell_a_terminal_nothing(ragged_data, fit, capsys):
    fit(small(), ragged_data(), 1, folder="[/x] old[er] :smile: \x1b[31m", callbacks=[RunSummary()])
    assert "[/x] old[er] :smile: \\x1b[31m\n" in capsys.readouterr().out


def test_what_a_pattern_matched_is_said(ragged_data, fit, capsys):
    fit(FedPer(keeps="*bias", network=TINY), ragged_data(), 1, callbacks=[RunSummary()])
    assert "Matched:        *bias: fc1.bias, fc2.bias\n" in capsys.readouterr().out


def test_every_metric_has_a_table_for_the_split(ragged_data, fit, capsys):
    fit(small(), ragged_data(eval_train=True), 1, callbacks=[RunSummary(), ClientMetrics(MulticlassF1Score)])
    titles = [line for line in capsys.readouterr().out.splitlines() if "after round" in line]
    assert [title.strip() for title in titles] == [
        "Clients' test accuracy (%) after round 1",
        "Clients' test f1 after round 1",
    ]


def test_clients_without_a_value_are_counted_beside_the_mean_of_the_others(ragged_data, fit, capsys):
    method = small()
    fit(method, ragged_data(), 1, callbacks=[RunSummary(), ClientMetrics(partial(MulticlassAUROC, average="none"))])
    _, accuracy, area = capsys.readouterr().out.split("Clients' test ")
    left_out = int(method.trainer.callback_metrics["test/global/auroc/left_out"])
    assert 0 < left_out < 6
    assert "left out" not in accuracy
    assert "left out" in area
    assert re.search(rf"global .*\b{left_out} +\W$", area, re.MULTILINE)
