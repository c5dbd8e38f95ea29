import logging
from functools import partial

import pytest
import torch
from fakes.cohorts import examples_of
from fakes.methods import built, distance

from pfl_lightning.errors import PflError
from pfl_lightning.federation.cohort import CPU_BYTES, DEVICE_BYTES, Cohort, Progress
from pfl_lightning.methods import FedRep

make = partial(FedRep, head_epochs=2)


@pytest.fixture
def with_room_for(ragged_data, monkeypatch):
    """A method whose engine runs out of memory with more than so many clients at once."""

    def method_with_room(clients):
        method = built(make, ragged_data())
        original = method.engine.train

        def train(examples, *arguments):
            if len(examples) > clients:
                raise torch.OutOfMemoryError("the device is full")
            return original(examples, *arguments)

        monkeypatch.setattr(method.engine, "train", train)
        return method

    return method_with_room


def test_the_size_follows_the_device_unless_it_is_given():
    chunks = Cohort(None, [[1 << 20, 3 << 20]])
    assert [chunks.size(torch.device("cpu")), CPU_BYTES // (3 << 20)] == [8, 10], "a multiple of 4, for threads"
    assert [Cohort(None, [[CPU_BYTES // room]]).size(torch.device("cpu")) for room in (1, 2, 3, 5)] == [1, 2, 2, 4]
    assert chunks.size(torch.device("cuda")) == DEVICE_BYTES // (4 << 20)
    assert Cohort(None, [[1 << 40]]).size(torch.device("cpu")) == 1
    assert Cohort(3, [[1 << 20]]).size(torch.device("cuda")) == 3


def test_work_on_small_tensors_takes_more_clients_at_once():
    chunks, cpu, cuda = Cohort(None, [[1 << 20, 3 << 20]]), torch.device("cpu"), torch.device("cuda")
    assert chunks.size(cpu, [1 << 10, 1 << 12]) == CPU_BYTES >> 12
    assert chunks.size(cuda, [1 << 10, 1 << 10]) == DEVICE_BYTES >> 11
    assert chunks.size(cpu, [1 << 30]) == chunks.size(cpu), "never fewer"
    assert Cohort(3, [[1 << 20]]).size(cpu, [1]) == 3
    chunks.limit = 2
    assert chunks.size(cpu, [1]) == 2


def test_chunks_come_in_order_and_work_that_runs_out_of_memory_is_done_again():
    cohort, tried = Cohort(4, [[1]]), []

    def work(places, examples):
        tried.append((int(places[0]), len(places)))
        cohort.progress.add(10.0, 3)
        if len(examples) > 2:
            raise torch.OutOfMemoryError("the device is full")
        return examples.ids.tolist()

    assert list(cohort.run("training", work, examples_of())) == [[0, 1], [2, 3], [4]]
    assert tried == [(0, 4), (0, 2), (2, 2), (4, 1)]
    progress = cohort.progress
    assert (progress.visits, progress.gradients, progress.reached, cohort.limit) == (30.0, 9, 5, 2)


def test_chunks_that_are_not_full_count_the_clients_that_they_have():
    cohort, examples = Cohort(4, [[1]]), examples_of()
    cohort.progress.begin("evaluating", torch.ones(9))  # the step of these five clients is the first of two
    list(cohort.map(lambda places, chunk: None, examples))
    assert cohort.progress.reached == 5


def test_progress_goes_by_clients_at_first_and_then_by_the_samples_of_such_work():
    progress = Progress()
    progress.begin("training", torch.tensor([6, 3, 1]))
    progress.add(20.0)
    assert (progress.share, progress.seconds_left) == (0, None)
    progress.reach(1)
    assert progress.share == 0.6
    progress.add(20.0)
    progress.end()  # 4 visits for each sample that clients hold
    progress.begin("training", torch.tensor([5, 5]))
    progress.add(10.0)
    assert progress.share == 0.25
    progress.reach(9)
    assert (progress.share, progress.reached) == (1, 2)


def test_clients_are_evaluated_with_many_at_once_where_only_heads_differ(ragged_data, fit, monkeypatch):
    sizes, map_chunks = [], Cohort.map

    def noted(chunks, work, examples, differing=None):
        sizes.append(differing)
        return map_chunks(chunks, work, examples, differing)

    monkeypatch.setattr(Cohort, "map", noted)
    fit(built(make, ragged_data()), ragged_data(), 1)
    head, inputs = [4 * 5 * 3, 4 * 3], 4 * 16 * 16 * 32  # of 3 classes; 32 samples of the largest client train
    assert sizes[0] == [*head, *head, inputs], "finetuned, stored"
    assert not sizes[1], "the round"


@pytest.mark.slow
def test_out_of_memory_halves_the_chunk_and_changes_nothing_else(with_room_for, ragged_data, fit, caplog):
    method, reference = with_room_for(2), built(make, ragged_data(), chunk_size=1)
    with caplog.at_level(logging.WARNING, "pfl_lightning"):
        fit(method, ragged_data(), 2)
    assert [record.message for record in caplog.records] == [
        "out of memory with 6 clients at once; continuing with 3",
        "out of memory with 3 clients at once; continuing with 1",
    ]
    fit(reference, ragged_data(), 2, "reference")
    assert distance(reference, method) == 0
    assert reference.trainer.callback_metrics == method.trainer.callback_metrics


@pytest.mark.slow
def test_a_resumed_run_takes_the_smaller_chunk_from_the_start(with_room_for, ragged_data, fit, caplog, tmp_path):
    fit(with_room_for(2), ragged_data(), 2)
    caplog.clear()
    resumed = with_room_for(2)
    fit(resumed, ragged_data(), 4, ckpt_path=tmp_path / "run/checkpoints/last.ckpt")
    assert resumed.cohort.limit == 1
    assert not [record for record in caplog.records if "out of memory" in record.message]


def test_no_room_for_one_client_is_one_line(with_room_for, ragged_data, fit):
    with pytest.raises(PflError, match="not enough memory on the device, even for one client"):
        fit(with_room_for(0), ragged_data(), 1)
