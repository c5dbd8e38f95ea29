import os

import pytest
from jsonargparse import Namespace
from lightning.pytorch.utilities import rank_zero_only

from pfl_lightning import processes
from pfl_lightning.cli.crew import Crew, agree
from pfl_lightning.errors import PflError

ONE = {"accelerator": "cpu", "devices": 1, "num_nodes": 1, "strategy": "auto", "plugins": None}
SLURM = {
    "SLURM_JOB_NAME": "train",
    "SLURM_NTASKS": "1",
    "SLURM_NTASKS_PER_NODE": "1",
    **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"), "0"),
}


@pytest.fixture(autouse=True)
def environment_as_before():
    before, rank = dict(os.environ), rank_zero_only.rank
    yield
    os.environ.clear()
    os.environ.update(before)
    rank_zero_only.rank = rank


def test_more_processes_than_cores_are_refused(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    with pytest.raises(PflError, match=r"trainer.devices: 4 is not possible; allowed: 1 to 3, this CPU"):
        Crew().join(Namespace({**ONE, "devices": 4}))


def test_several_machines_have_to_know_where_they_meet(monkeypatch):
    monkeypatch.delenv("NODE_RANK", raising=False)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "1234")
    refusal = "trainer.num_nodes: 2 is not possible without NODE_RANK in the environment; allowed: 1, or torchrun"
    with pytest.raises(PflError, match=refusal):
        Crew().join(Namespace({**ONE, "num_nodes": 2}))


def test_a_launcher_has_to_start_as_many_processes_as_the_trainer_has_devices(monkeypatch):
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    crew = Crew()
    crew.meet_early()
    refusal = "trainer.devices: 2 with trainer.num_nodes: 1 is not possible; allowed: as many processes as were started"
    with pytest.raises(PflError, match=refusal):
        crew.join(Namespace({**ONE, "devices": 2}))


def test_a_job_of_slurm_without_tasks_per_node_is_refused_with_slurms_name(monkeypatch):
    for name, value in {**SLURM, "SLURM_NTASKS": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_NTASKS_PER_NODE")
    with pytest.raises(PflError, match="SLURM: You set `--ntasks=2`"):
        Crew().meet_early()


def test_processes_that_differ_are_refused_by_the_first_difference(monkeypatch):
    monkeypatch.setattr(processes, "gathered", lambda facts: [facts, facts, {**facts, "b": 4, "c": 5}])
    with pytest.raises(PflError, match="b: 4 on rank 2 is not possible; allowed: 3, as on"):
        agree({"a": 1, "b": 3, "c": 2})


def test_processes_that_do_not_differ_agree():
    agree({"a": 1})
