import json
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from fakes.forked import pfl
from peers.environments import PeerError
from peers.tracks import TRACKS, flute, niid_bench, pfl_research, pfllib, track
from plain_methods import samples_of
from reproduction.runs import split_data

from pfl_lightning.data import Arrays, Digits
from pfl_lightning.runs.run_settings import settings_of

INTERPRETER = Path(sys.executable)
PFLLIB = """
import sys
import numpy as np
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
held = [np.load(f"../dataset/{options['-data']}/{split}/1.npz", allow_pickle=True)["data"].tolist() for split in SPLITS]
assert all(each["x"].shape == (len(each["y"]), 1, 8, 8) for each in held), held
print("Averaged Test Accuracy: 0.1")
for number in range(int(options["-gr"]) + 1):
    print("-" * 25, "time cost", "-" * 25, number + 0.125)
print("Averaged Test Accuracy: 0.25")
"""


def test_pfllibs_command_reads_our_clients_and_its_seconds_and_accuracy_are_read(tmp_path):
    of_pfllib = TRACKS["pfllib"]
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "main.py").write_text(PFLLIB.replace("SPLITS", "('train', 'test')"))
    data = Digits(num_clients=4)
    data.setup()
    pfllib.write_clients(data, tmp_path / "dataset" / "FashionMNIST")
    outcome = of_pfllib.run_library(INTERPRETER, tmp_path / "system", 1)
    assert (outcome.seconds, outcome.accuracy) == ([1.125, 2.125, 3.125], 0.25)
    assert outcome.peak > 2**20
    (tmp_path / "system" / "main.py").write_text("raise OSError('no such file')")
    with pytest.raises(PeerError, match="OSError: no such file"):
        of_pfllib.run_library(INTERPRETER, tmp_path / "system", 1)
    (tmp_path / "system" / "main.py").write_text("print('no actor fits')")
    with pytest.raises(PeerError, match="no numbers; its last line: no actor fits"):
        of_pfllib.run_library(INTERPRETER, tmp_path / "system", 1)


def samples_held(data, client):
    """A client's training and test samples in any order, as text of their inputs and targets."""
    tables = (data.tables[split].examples(torch.tensor([client])) for split in ("train", "test"))
    return [
        sorted(
            str((*inputs.flatten().tolist(), *targets.tolist()))
            for inputs, targets in zip(*(part.split(1) for part in samples_of(table)), strict=True)
        )
        for table in tables
    ]


def test_the_function_of_the_docs_turns_pfllibs_clients_into_ours(tmp_path):
    page = (Path(__file__).parents[2] / "docs/guides/pfllib.md").read_text(encoding="utf-8")
    names = {}
    exec(page.partition("# from_pfllib.py")[2].partition("```")[0], names)
    theirs = Digits(num_clients=12, max_samples=20)
    theirs.setup()
    pfllib.write_clients(theirs, tmp_path)
    names["convert"](tmp_path, tmp_path / "digits.npz")
    ours = Arrays(tmp_path / "digits.npz", standardize=False, val_fraction=0.0)
    ours.setup()
    assert sorted(map(int, ours.client_names)) == [*range(12)]
    for client, name in enumerate(ours.client_names):
        assert samples_held(ours, client) == samples_held(theirs, int(name))


def test_seconds_of_pfllib_are_read_whole():
    assert pfllib.SECONDS.findall("time cost 31.25\n---- time cost ----- 0.5\n") == ["31.25", "0.5"]


def test_our_command_beside_anothers_is_timed_round_by_round(tmp_path, monkeypatch):
    def in_a_fork(command, timeout, folder, environ):
        code, told, said = pfl(folder, *command[3:], **environ)
        assert code == 0, said
        return told, 0

    monkeypatch.setattr(track, "execute", in_a_fork)  # Python needs seconds to import all that
    begun, three_rounds = time.perf_counter(), replace(TRACKS["pfllib"], rounds=3)
    outcome = three_rounds.run_ours(["--config=data/digits"], tmp_path / "ours", 1)
    assert len(outcome.seconds) == 2
    assert 0 < min(outcome.seconds) <= max(outcome.seconds) < time.perf_counter() - begun
    assert 0 < outcome.accuracy < 1


def test_flowers_rounds_end_where_its_progress_says():
    lines = [
        f"INFO | server.py:127 | fit progress: ({at}, 0.5, {{'accuracy': 0.{at}}}, {2.5 * at**2})" for at in (1, 2, 3)
    ]
    assert niid_bench.read("\n".join(["noise", *lines, "noise", *lines])) == ([7.5, 12.5], 0.3)


def test_rounds_in_which_pfl_research_measures_the_clients_are_left_out():
    def said(at):
        accuracy = f"    Central val | accuracy     : 0.{at}1\n    Central val | accuracy | best overall : 0.9\n"
        return f"    Duration of iteration (s)    : {at}.5\n{accuracy if at in (0, 10) else ''}"

    text = "    Overall average duration of iteration (s) : 8\n".join(map(said, range(pfl_research.ROUNDS)))
    assert pfl_research.read(text) == ([at + 0.5 for at in range(1, 10)], 0.101)


def test_pfl_research_gets_the_images_that_we_have(real_data, tmp_path):
    (tmp_path / "benchmarks").mkdir()
    folder = pfl_research.lay_out(tmp_path, real_data / "cifar10", tmp_path / "copy")
    images, labels = pickle.loads((folder / "data" / "cifar10" / "cifar10_test.p").read_bytes())
    batch = pickle.loads((real_data / "cifar10/cifar-10-batches-py/test_batch").read_bytes(), encoding="latin1")
    assert (images.shape[1:], labels.shape[1:], images.dtype) == ((32, 32, 3), (1,), np.uint8)
    np.testing.assert_array_equal(images[7, :, :, 1].ravel(), batch["data"][7, 1024:2048])
    assert labels[:, 0].tolist() == list(batch["labels"])


def test_flute_gets_our_clients_in_its_files_and_tells_its_log(real_data, tmp_path, monkeypatch):
    assert "--data.num_clients=1000" in flute.DATA
    monkeypatch.setattr(flute, "DATA", [*flute.DATA, "--data.num_clients=20", "--data.sample_fraction=0.02"])
    (tmp_path / "checkout").mkdir()
    folder = flute.lay_out(tmp_path / "checkout", real_data / "mnist", tmp_path)
    data = split_data([*flute.DATA, f"--data.root={real_data / 'mnist'}"])
    held = json.loads((folder / "data/MNIST/test/all.json").read_text())
    assert ZipFile(folder / "data/MNIST.zip").namelist() == [], "so that nothing is downloaded or unpacked"
    client, samples = held["users"][7], held["user_data"][held["users"][7]]
    inputs, targets = samples_of(data.tables["test"].examples(torch.tensor([int(client)])))
    assert len(held["users"]) == 20
    assert held["num_samples"][7] == len(targets)
    assert samples["y"] == targets.tolist()
    torch.testing.assert_close(torch.tensor(samples["x"]), inputs.flatten(1))
    log = "from azureml.core import Run; Run.get_context().log('secsPerRoundTotal', 0.5)\n"
    read = subprocess.run([sys.executable, "-c", log], cwd=folder, capture_output=True, text=True, check=True).stdout
    assert flute.read(f"{read}Test acc: 0.1\n{read}noise\n{read}Test acc: 0.25\n") == ([0.5, 0.5], 0.25)


@pytest.mark.parametrize("name", TRACKS)
def test_our_side_of_a_track_is_a_run_that_is_evaluated_after_its_last_round(name):
    first, *others = TRACKS[name].options
    settings = settings_of([first, "--config=methods/fedavg", *others])
    assert TRACKS[name].rounds % settings["trainer"]["val_check_interval"] == 0


def test_the_network_of_pfl_research_has_its_number_of_parameters():
    network = pfl_research.SimpleCNN()
    assert sum(tensor.numel() for tensor in network.parameters()) == 1_626_442  # which its command prints
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
