"""What TensorBoard's own code reads of the runs of ``pfl fit``."""

import csv
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import api_pb2, metadata

from pfl_lightning.callbacks.board import EVALUATED, FIRST_COLUMNS, column_of, columns
from pfl_lightning.cli import main

RUN = Path("runs/FedRep-SRPFL-Digits/version_0")
TINY = ["--model.network=MLP", "--model.network.hidden=[4]", "--model.eval_epochs=1", "--data.num_clients=4"]
PLAIN = ["--trainer.enable_progress_bar=false", "--trainer.callbacks+=StageDoubling", "--trainer.callbacks.n0=2"]


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    """What is there after a run of one round that is then continued for a second one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("board"))
        words = ["fit", "--model=FedRep", "--model.local.lr=0.25", *TINY, *PLAIN]
        main([*words, "--trainer.max_steps=1"])
        main([*words, "--trainer.max_steps=2", "--ckpt_path=last"])
        yield EventAccumulator(str(RUN)).Reload()


def content(board, tag):
    return board.SummaryMetadata(tag).plugin_data.content


@pytest.mark.slow
def test_the_table_of_settings_has_a_row_with_those_that_make_the_curve(board):
    row = metadata.parse_session_start_info_plugin_data(content(board, metadata.SESSION_START_INFO_TAG)).hparams
    assert row[" method"].string_value == "FedRep-SRPFL"
    assert row[" data"].string_value == "Digits"
    assert row[" model.network"].string_value == "MLP"
    assert (row[" seed"].number_value, row[" model.local.lr"].number_value) == (1, 0.25)
    assert (row["data.num_clients"].number_value, row["StageDoubling.n0"].number_value) == (4, 2)
    assert not any("hidden" in name or "root" in name or name.startswith("trainer") for name in row)


def test_the_table_opens_with_what_matters_and_the_newest_results(board):
    table = metadata.parse_experiment_plugin_data(content(board, metadata.EXPERIMENT_TAG))
    assert sorted(info.name for info in table.hparam_infos)[: len(FIRST_COLUMNS)] == [
        column_of(name) for name in FIRST_COLUMNS
    ]
    assert {info.display_name for info in table.hparam_infos} >= set(FIRST_COLUMNS)
    assert [info.name.tag for info in table.metric_infos] == ["test/accuracy", "val/accuracy", EVALUATED, "time/total"]
    with (RUN / "metrics.csv").open(newline="") as file:
        last = list(csv.DictReader(file))[-1]
    for tag in ("test/accuracy", "val/accuracy", "time/total"):
        newest = max(board.Scalars(tag), key=lambda event: event.step)
        assert newest.step == 2
        assert newest.value == pytest.approx(float(last[tag]))
    assert [event.value for event in board.Scalars(EVALUATED)] == [0, 2]


def outcome(board):
    return metadata.parse_session_end_info_plugin_data(content(board, metadata.SESSION_END_INFO_TAG)).status


def test_the_table_tells_runs_that_have_ended_from_those_that_have_failed(board, in_an_empty_folder, capsys):
    assert outcome(board) == api_pb2.STATUS_SUCCESS
    with pytest.raises(SystemExit):
        main(["fit", "--model=FedRep", "--model.local.lr=1e9", *TINY, *PLAIN, "--trainer.max_steps=2"])
    assert "FedRep diverged" in capsys.readouterr().err
    assert outcome(EventAccumulator(str(RUN)).Reload()) == api_pb2.STATUS_FAILURE


def test_the_headline_is_the_mean_of_the_first_model(board):
    for split in ("test", "val"):
        first = [event.value for event in board.Scalars(f"{split}/finetuned/accuracy/mean")]
        assert [event.value for event in board.Scalars(f"{split}/accuracy")] == first


def test_the_settings_file_is_there_as_text_at_each_start(board):
    texts = board.Tensors("config.yaml/text_summary")
    assert [event.step for event in texts] == [0, 1]
    text = texts[-1].tensor_proto.string_val[0].decode()
    assert text == f"```yaml\n{(RUN / 'config.yaml').read_text()}```"


def test_the_groups_of_tags_begin_with_the_test_scores_and_keep_percentiles_apart(board):
    tags = board.Tags()
    groups = {tag.partition("/")[0] for tag in [*tags["scalars"], *tags["images"], *tags["histograms"]]}
    assert sorted(groups) == ["test", "test_percentiles", "time", "train", "val", "val_percentiles"]
    shown = {*tags["scalars"], *tags["images"]}
    assert {"train/bits/total", "train/system/cohort", "train/loss", "train/data/partition"} <= shown


def test_the_table_can_show_the_options_of_methods_that_are_not_in_the_first_run():
    assert {"model.proximity", "model.head_epochs", "mine"} <= set(columns(["mine"]))
    assert "model.kwargs" not in columns([])
