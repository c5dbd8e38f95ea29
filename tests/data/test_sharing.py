import json
import multiprocessing
import os
import resource
import signal
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from pfl_lightning.data import Arrays, NaturalUsers, sharing
from pfl_lightning.data.datamodule import FederatedDataModule
from pfl_lightning.data.labelled import LabelledData
from pfl_lightning.data.transforms import Numbers
from pfl_lightning.errors import PflError

CONTEXT = multiprocessing.get_context("fork")  # of this process, which has imported all: a fresh one takes seconds
SAMPLES, USERS = 2000, 10
SECONDS = 60

# pytest-xdist has a thread that a forked process does not need
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


class Noted(FederatedDataModule):
    """Random numbers; each reading adds a line to a file. What it learns of them is in attributes."""

    usual_partition = NaturalUsers
    regression = True
    num_classes = 1

    def __init__(self, root: str) -> None:
        super().__init__(root=root, num_clients=USERS)
        self.words: dict[str, int] = {}

    def load(self):
        with (Path(self.root) / "read").open("a") as file:
            file.write("once\n")
        generator = torch.Generator().manual_seed(0)
        self.input_shape = (30,)
        self.words["learnt"] = 7
        inputs = torch.randn(SAMPLES, 30, generator=generator)
        return LabelledData(inputs, inputs.sum(1), torch.arange(SAMPLES) % USERS), None

    def transform(self):
        return Numbers()


def ready(folder):
    data = Noted(str(folder))
    data.setup()
    return data


def readings(folder):
    return len((folder / "read").read_text().splitlines())


def file_of(tensor):
    """Name and number of the file that a tensor's memory is a map of."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, _, _, _, number, *name = line.split(maxsplit=5)
        start, stop = (int(each, 16) for each in addresses.split("-"))
        if start <= tensor.data_ptr() < stop:
            return " ".join(name), number
    raise AssertionError("no tensor of this process")


def _act(act, rank, count, folder, results):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=count)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            said = act(rank, folder)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
    results.put((rank, json.dumps([said, [str(warning.message) for warning in caught]])))
    os._exit(0)  # leaving the group takes for ever in a forked process with torch 2.6


def act_in_processes(act, folder, count=2):
    """What each process that ends gets from ``act(rank, folder)``, or the error, and the warnings."""
    results = CONTEXT.SimpleQueue()
    actors = [CONTEXT.Process(target=_act, args=(act, rank, count, folder, results)) for rank in range(count)]
    for actor in actors:
        actor.start()
    for actor in actors:
        actor.join(SECONDS)
        assert actor.exitcode is not None, "it waits for ever"
    said = {}
    while not results.empty():
        rank, result = results.get()
        said[rank] = json.loads(result)
    return said


def test_one_process_reads_and_all_use_its_memory(tmp_path):
    def act(rank, folder):
        data = ready(folder)
        samples, table = data.tables["train"].samples, data.tables["train"]
        files = {file_of(tensor) for tensor in (samples.inputs, samples.targets, table.flat)}
        return [data.fingerprint(), data.input_shape, data.words, *files]

    said = act_in_processes(act, tmp_path, count=3)
    assert readings(tmp_path) == 1
    (fingerprint, shape, words, (name, _)), warned = said[0]
    assert (shape, words, warned) == ([30], {"learnt": 7}, [])
    assert "memfd:pfl_lightning data" in name
    assert said[1] == said[2] == said[0], "they have one file"
    assert fingerprint == ready(tmp_path).fingerprint(), "they have what a single process would read"


def test_arrays_of_a_program_are_shared_too(tmp_path):
    def act(rank, folder):
        inputs = torch.arange(400.0).view(100, 4)
        data = Arrays(inputs=inputs, targets=torch.arange(100) % 2, num_clients=4)
        data.setup()
        return [data.class_names, *file_of(data.tables["train"].samples.inputs)]

    said = act_in_processes(act, tmp_path)
    assert said[0] == said[1]
    assert "memfd" in said[0][0][1]


def test_no_file_stays_open_beside_the_memory(tmp_path):
    def act(rank, folder):
        data = ready(folder)
        files = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        return [file for file in files if "pfl_lightning" in file], data.tables["train"].samples.inputs.sum().item()

    said = act_in_processes(act, tmp_path)
    assert said[0] == said[1]
    assert said[0][0][0] == []


def test_what_one_process_writes_the_others_do_not_see(tmp_path):
    def act(rank, folder):
        inputs = ready(folder).tables["train"].samples.inputs
        if rank == 0:
            inputs.zero_()
        dist.barrier()
        return inputs.abs().sum().item() > 0

    assert act_in_processes(act, tmp_path) == {0: [False, []], 1: [True, []]}


def test_a_process_alone_shares_nothing(tmp_path):
    data = ready(tmp_path)
    assert "memfd" not in file_of(data.tables["train"].samples.inputs)[0]


def test_processes_of_several_machines_read_once_on_each(tmp_path, monkeypatch):
    def act(rank, folder):
        monkeypatch.setattr(sharing, "_machine", lambda: "one" if rank < 2 else "another")
        return file_of(ready(folder).tables["train"].samples.inputs)[0]

    said = act_in_processes(act, tmp_path, count=3)
    assert readings(tmp_path) == 2
    assert ["memfd" in said[rank][0] for rank in range(3)] == [True, True, False]


@pytest.mark.parametrize("error", [PflError("data.root: no files"), OSError(5, "Input/output error"), KeyError("x")])
def test_an_error_of_the_one_that_reads_reaches_all(tmp_path, monkeypatch, error):
    def act(rank, folder):
        def fail(data):
            raise error

        monkeypatch.setattr(Noted, "load", fail)
        ready(folder)

    said = act_in_processes(act, tmp_path)
    told = said[0][0].partition(": ")[2]
    assert said[1] == [f"PflError: rank 0 of 2: {told}", []]


def test_an_error_on_one_machine_reaches_all_machines(tmp_path, monkeypatch):
    def act(rank, folder):
        monkeypatch.setattr(sharing, "_machine", lambda: str(rank))
        if rank == 1:
            monkeypatch.setattr(Noted, "load", lambda data: (_ for _ in ()).throw(PflError("data.root: no files")))
        ready(folder)

    said = act_in_processes(act, tmp_path)
    assert said[0][0] == "PflError: rank 1 of 2: data.root: no files"
    assert said[1][0] == "PflError: data.root: no files"


def test_nobody_waits_for_one_that_is_killed_while_it_reads(tmp_path, monkeypatch):
    def act(rank, folder):
        monkeypatch.setattr(Noted, "load", lambda data: os.kill(os.getpid(), signal.SIGKILL))
        ready(folder)

    said = act_in_processes(act, tmp_path)
    assert list(said) == [1]
    assert "RuntimeError" in said[1][0]


def expect_own_copies(said, folder, reason, warned):
    assert readings(folder) == 2
    assert ["memfd" in file for (file, _), _ in said.values()] == [False, False]
    assert [len(warnings) for _, warnings in (said[0], said[1])] == warned
    for _, lines in said.values():
        for line in lines:
            assert line.startswith("processes of this machine cannot share the data, so each has its own (")
            assert reason in line


def test_where_memory_is_short_each_process_reads_its_own(tmp_path):
    def act(rank, folder):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        return file_of(ready(folder).tables["train"].samples.inputs)

    expect_own_copies(act_in_processes(act, tmp_path), tmp_path, "File too large", [1, 0])


def test_what_cannot_be_pickled_each_process_reads_itself(tmp_path, monkeypatch):
    def act(rank, folder):
        load = Noted.load

        def with_function(data):
            data.function = lambda: None
            return load(data)

        monkeypatch.setattr(Noted, "load", with_function)
        return file_of(ready(folder).tables["train"].samples.inputs)

    expect_own_copies(act_in_processes(act, tmp_path), tmp_path, "lambda", [1, 0])


def test_a_process_that_cannot_open_the_file_reads_its_own(tmp_path, monkeypatch):
    def act(rank, folder):
        take = sharing._take
        monkeypatch.setattr(sharing, "_take", lambda data, path: take(data, f"{path}9999" if rank else path))
        return file_of(ready(folder).tables["train"].samples.inputs)

    said = act_in_processes(act, tmp_path)
    assert readings(tmp_path) == 2
    assert ["memfd" in said[rank][0][0] for rank in (0, 1)] == [True, False]
    assert "No such file" in said[1][1][0]


def test_outside_linux_each_process_reads_its_own(tmp_path, monkeypatch):
    def act(rank, folder):
        monkeypatch.setattr(sharing.sys, "platform", "darwin")
        return file_of(ready(folder).tables["train"].samples.inputs)

    expect_own_copies(act_in_processes(act, tmp_path), tmp_path, "", [0, 0])
