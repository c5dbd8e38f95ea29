import errno
import os
import signal

import pytest
import torch

from pfl_lightning.callbacks import RoundCheckpoint
from pfl_lightning.callbacks.checkpointing import Stopped
from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg
from pfl_lightning.models import MLP


def small(**kwargs):
    return FedAvg(network=lambda shape, classes: MLP(shape, classes, hidden=(4,)), **kwargs)


def rounds_in(folder):
    files = sorted((folder / "checkpoints").glob("*.ckpt"))
    return {path.stem: torch.load(path, weights_only=True)["global_step"] for path in files}


def test_the_last_two_and_the_best_are_kept_as_plain_files(ragged_data, fit, tmp_path):
    fit(small(), ragged_data(), 5)
    rounds = rounds_in(tmp_path / "run")
    assert (rounds["last"], rounds["previous"]) == (5, 4)
    assert set(rounds) == {"last", "previous", "best"}
    assert not list(tmp_path.rglob(".*.tmp"))
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


def test_the_best_is_the_first_with_the_highest_validation_mean(ragged_data, fit, tmp_path):
    scores = iter([0.1, 0.5, 0.3, 0.5])  # after rounds 0, 2, 4, 5

    class Scored(FedAvg):
        def on_validation_epoch_end(self):
            super().on_validation_epoch_end()
            self.log("score", next(scores))

    checkpoint = RoundCheckpoint(monitor="score")
    method = Scored(network=lambda shape, classes: MLP(shape, classes, hidden=(4,)))
    fit(method, ragged_data(), 5, callbacks=[checkpoint])
    assert (checkpoint.best_round, checkpoint.best_score) == (2, 0.5)
    assert rounds_in(tmp_path / "run")["best"] == 2


def test_without_a_validation_share_there_is_no_best(ragged_data, fit, tmp_path):
    fit(small(), ragged_data(val_fraction=0), 2)
    assert set(rounds_in(tmp_path / "run")) == {"last", "previous"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("stop_at", [3, 4])  # an evaluation follows round 4 only
def test_a_signal_lets_the_round_finish_and_resumes_exactly(number, stop_at, ragged_data, fit, tmp_path, capsys):
    class Interrupted(FedAvg):
        def on_train_batch_start(self, batch, batch_idx):
            if batch.round_index + 1 == stop_at:
                os.kill(os.getpid(), number)

    network = small().make_network
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Stopped) as stopped:
        fit(Interrupted(network=network), ragged_data(), 6, "interrupted")
    assert stopped.value.code == 128 + number
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert f"saved round {stop_at}" in capsys.readouterr().err

    resumed, straight = small(), small()
    trainers = [
        fit(resumed, ragged_data(), 6, "interrupted", tmp_path / "interrupted/checkpoints/last.ckpt"),
        fit(straight, ragged_data(), 6, "straight"),
    ]
    assert all(torch.equal(tensor, resumed.state_dict()[name]) for name, tensor in straight.state_dict().items())
    assert trainers[0].callback_metrics == trainers[1].callback_metrics


def test_a_crash_while_saving_leaves_the_checkpoints_alone(ragged_data, fit, tmp_path, monkeypatch):
    fit(small(), ragged_data(), 4)
    before = rounds_in(tmp_path / "run")

    def half_a_file(checkpoint, file):
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", half_a_file)
    with pytest.raises(PflError, match=r"checkpoint: cannot write '.*' \(No space left on device\); the checkpoints"):
        fit(small(), ragged_data(), 6, ckpt_path=tmp_path / "run/checkpoints/last.ckpt")
    assert rounds_in(tmp_path / "run") == before
    assert not list(tmp_path.rglob("*.tmp"))
