import errno
import os
import signal
from functools import partial

import pytest
import torch
from fakes.methods import TINY, small

from pfl_lightning.callbacks import RoundCheckpoint
from pfl_lightning.callbacks.round_checkpoint import Stopped
from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg

exactly_equal = partial(torch.testing.assert_close, rtol=0, atol=0)


def rounds_in(folder):
    files = sorted((folder / "checkpoints").glob("*.ckpt"))
    return {path.stem: torch.load(path, weights_only=True)["global_step"] for path in files}


class Scored(FedAvg):
    """Logs these values at its evaluations, after rounds 0, 2, 4, ..., and at the end."""

    def __init__(self, *values, name="score"):
        super().__init__(network=TINY)
        self.values = iter(values)
        self.name = name

    def on_validation_epoch_end(self):
        super().on_validation_epoch_end()
        self.log(self.name, next(self.values))


class Acting(FedAvg):
    """Does something at the start of each round, given its index."""

    def __init__(self, action, **options):
        super().__init__(network=TINY, **options)
        self.action = action

    def on_train_batch_start(self, batch, batch_idx):
        self.action(batch.round_index)


def test_the_last_two_and_the_best_are_kept_as_plain_files_and_nothing_goes_elsewhere(
    ragged_data, fit, tmp_path, monkeypatch
):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "no such folder"))
    monkeypatch.setattr("tempfile.tempdir", None)
    method = small()
    trainer = fit(method, ragged_data(), 5)
    rounds = rounds_in(tmp_path / "run")
    assert (rounds["last"], rounds["previous"]) == (5, 4)
    assert set(rounds) == {"last", "previous", "best"}
    assert not list(tmp_path.rglob(".*.tmp"))
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))
    trainer.validate(method, ragged_data(), verbose=False)
    assert rounds_in(tmp_path / "run") == rounds, "an evaluation of a finished run saves nothing"


@pytest.mark.parametrize(
    ("name", "values", "best"),
    [
        ("score", [0.1, 0.5, 0.3, 0.5], 2),  # the first with the highest value
        ("val/global/loss/mean", [0.5, 0.25, 0.375, 0.4], 2),
        ("val/global/error/mean", [0.5, 0.4, 0.25, 0.4], 4),
    ],
)
def test_the_best_has_the_highest_score_or_the_lowest_loss_or_error(name, values, best, ragged_data, fit, tmp_path):
    checkpoint = RoundCheckpoint(monitor=name)
    fit(Scored(*values, name=name), ragged_data(), 5, callbacks=[checkpoint])
    assert (checkpoint.best_round, abs(checkpoint.best_score)) == (best, values[best // 2])
    assert rounds_in(tmp_path / "run")["best"] == best


def test_without_a_validation_share_there_is_no_best(ragged_data, fit, tmp_path):
    fit(small(), ragged_data(val_fraction=0), 2)
    assert set(rounds_in(tmp_path / "run")) == {"last", "previous"}


@pytest.mark.parametrize(("number", "round_index"), [(signal.SIGINT, 0), (signal.SIGTERM, 2)])
def test_a_signal_during_an_evaluation_stops_after_it_unless_it_is_the_last(
    number, round_index, ragged_data, fit, tmp_path
):
    class Interrupted(FedAvg):
        def on_validation_start(self):
            if self.accounting.clock.rounds == round_index:
                os.kill(os.getpid(), number)

    method = Interrupted(network=TINY)
    if round_index == 0:
        with pytest.raises(Stopped) as stopped:
            fit(method, ragged_data(), 2)
        assert stopped.value.code == 128 + number
    else:
        fit(method, ragged_data(), 2)
    assert rounds_in(tmp_path / "run")["last"] == round_index


@pytest.mark.slow
@pytest.mark.parametrize(("number", "stop_at"), [(signal.SIGINT, 3), (signal.SIGTERM, 4)])  # 4 is evaluated
def test_a_signal_lets_the_round_finish_and_resumes_exactly(number, stop_at, ragged_data, fit, tmp_path, capsys):
    def interrupt(index):
        if index + 1 == stop_at:
            os.kill(os.getpid(), number)

    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Stopped) as stopped:
        fit(Acting(interrupt), ragged_data(), 6, "interrupted")
    assert stopped.value.code == 128 + number
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert f"saved round {stop_at}" in capsys.readouterr().err

    last = tmp_path / "interrupted/checkpoints/last.ckpt"
    resumed = fit(small(), ragged_data(), 6, "interrupted", last)
    straight = fit(small(), ragged_data(), 6, "straight")
    exactly_equal(resumed.lightning_module.state_dict(), straight.lightning_module.state_dict())
    assert resumed.callback_metrics == straight.callback_metrics


def test_a_truncated_last_checkpoint_does_not_push_out_the_one_before_it(ragged_data, fit, tmp_path):
    fit(small(), ragged_data(), 4)
    last, previous = (tmp_path / f"run/checkpoints/{name}.ckpt" for name in ("last", "previous"))
    last.write_bytes(last.read_bytes()[:-100])
    fit(small(), ragged_data(), 4, ckpt_path=previous)
    rounds = rounds_in(tmp_path / "run")
    assert (rounds["last"], rounds["previous"]) == (4, 2)


@pytest.mark.slow
def test_the_interval_of_saves_changes_no_result(ragged_data, fit, tmp_path):
    usual = fit(small(), ragged_data(), 7, "usual")
    for every, previous in ((3, 6), (4, 4), (100, 0)):
        trainer = fit(small(), ragged_data(), 7, f"{every}", callbacks=[RoundCheckpoint(every=every)])
        assert trainer.callback_metrics == usual.callback_metrics
        rounds = rounds_in(tmp_path / f"{every}")
        assert (rounds["last"], rounds["previous"]) == (7, previous), "the last round is always saved"
        for name in ("last", "best"):
            saved, expected = (torch.load(tmp_path / run / f"checkpoints/{name}.ckpt") for run in (f"{every}", "usual"))
            exactly_equal(saved["state_dict"], expected["state_dict"])
            assert saved["callbacks"]["RoundCheckpoint"] == expected["callbacks"]["RoundCheckpoint"]
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.slow
def test_a_save_between_evaluations_resumes_exactly(ragged_data, fit, tmp_path):
    def fail(index):
        if index == 5:
            raise InterruptedError

    saving = {"callbacks": [RoundCheckpoint(every=3)], "val_check_interval": 4}
    with pytest.raises(InterruptedError):
        fit(Acting(fail), ragged_data(), 7, "lost", **saving)
    assert rounds_in(tmp_path / "lost")["last"] == 3
    resumed = fit(small(), ragged_data(), 7, "lost", tmp_path / "lost/checkpoints/last.ckpt", **saving)
    straight = fit(small(), ragged_data(), 7, "straight", val_check_interval=4)
    exactly_equal(resumed.lightning_module.state_dict(), straight.lightning_module.state_dict())


def test_a_resumed_run_compares_with_the_best_checkpoint_that_is_there(ragged_data, fit, tmp_path):
    def run(rounds, *scores, **kwargs):
        checkpoint = RoundCheckpoint("score")
        fit(Scored(*scores), ragged_data(), rounds, callbacks=[checkpoint], **kwargs)
        return checkpoint.best_round, rounds_in(tmp_path / "run").get("best")

    folder = tmp_path / "run/checkpoints"
    assert run(4, 0.1, 0.5, 0.3) == (2, 2)
    assert run(6, 0.4, ckpt_path=folder / "last.ckpt") == (2, 2)
    assert run(8, 0.4, 0.6, ckpt_path=folder / "previous.ckpt") == (8, 8)
    (folder / "best.ckpt").unlink()
    assert run(10, 0.2, ckpt_path=folder / "last.ckpt") == (10, 10)
    best = folder / "best.ckpt"
    best.write_bytes(best.read_bytes()[:-100])
    with pytest.warns(UserWarning, match=r"best\.ckpt' is damaged .* will be replaced by the best round from now on"):
        assert run(12, 0.1, ckpt_path=folder / "last.ckpt") == (12, 12)


def test_scores_of_another_kind_are_not_compared(ragged_data, fit, tmp_path):
    fit(small(), ragged_data(), 2)
    last = tmp_path / "run/checkpoints/last.ckpt"
    line = r"checkpoint\.monitor: val/global/accuracy/mean in '.*best\.ckpt', val/global/accuracy/std now; keep the old"
    with pytest.raises(PflError, match=line):
        fit(small(), ragged_data(), 4, ckpt_path=last, callbacks=[RoundCheckpoint("val/global/accuracy/std")])
    fit(small(), ragged_data(), 4, ckpt_path=last, callbacks=[RoundCheckpoint("val/global/accuracy/mean")])


@pytest.mark.parametrize(
    ("monitor", "val_fraction", "line"),
    [
        ("test/global/accuracy/mean", 0.2, "would select on test data"),
        ("val/globl/accuracy/mean", 0.2, "is not logged; allowed: val/accuracy, val/global/accuracy/mean, val/finetun"),
        ("val/global/accuracy/mean", 0.0, "needs validation samples; set data.val_fr"),
        ("val/global/accuracy/men", 0.2, "is not logged; allowed: val/accuracy, "),
    ],
)
def test_a_wrong_monitor_is_refused_before_the_first_round(monitor, val_fraction, line, ragged_data, fit, tmp_path):
    def fail(index):
        raise AssertionError("a round")

    with pytest.raises(PflError, match=f"checkpoint.monitor: {monitor} {line}"):
        fit(Acting(fail), ragged_data(val_fraction=val_fraction), 2, callbacks=[RoundCheckpoint(monitor)])
    assert not list(tmp_path.rglob("*.ckpt"))


@pytest.mark.parametrize("bad", [2, 3])  # the copy for best.ckpt, or the next round
def test_a_full_disk_leaves_the_checkpoints_before_it(bad, ragged_data, fit, tmp_path, monkeypatch):
    calls = iter(range(1, 100))
    fsync = os.fsync

    def full(descriptor):
        if os.path.isfile(f"/proc/self/fd/{descriptor}") and next(calls) == bad:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PflError, match=r"checkpoint: cannot write '.*\.tmp' \(No space left on device\)"):
        fit(small(), ragged_data(), 4)
    assert rounds_in(tmp_path / "run") == ({} if bad == 2 else {"last": 0, "best": 0})
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_second_signal_stops_at_once(ragged_data, fit, capsys):
    def interrupt(index):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGUSR1)

    with pytest.raises(Stopped) as stopped:
        fit(Acting(interrupt, eval_epochs=0), ragged_data(), 6)
    assert stopped.value.code == 128 + signal.SIGUSR1
    assert "saved round" not in capsys.readouterr().err
