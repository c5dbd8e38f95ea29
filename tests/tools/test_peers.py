import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from peers import environments, reference, rounds
from peers.environments import Peer, PeerError
from peers.reference import Outcome

CLIENTS, SAMPLES, ROUNDS, WIDTHS = 3, 20, 2, (12, 8, 6, 3)
INTERPRETER = Path(sys.executable)
PLAIN, OURS = rounds.HERE / "plain_torch.py", rounds.HERE / "ours.py"


@pytest.fixture
def data(tmp_path):
    rounds.write_workload(tmp_path / "data.npz", CLIENTS, SAMPLES, ROUNDS, WIDTHS)
    return tmp_path / "data.npz"


@pytest.fixture
def outcome(tmp_path, monkeypatch):
    """Runs a program in this process, with some of its text replaced, and reads what it hands back."""
    monkeypatch.setattr("pfl_lightning.processes.keep_freed_memory", lambda: None)  # it would hold for all tests

    def run(program, data, **changes):
        text = program.read_text()
        for old, new in changes.values():
            assert old in text
            text = text.replace(old, new)
        monkeypatch.setattr(sys, "argv", ["program", str(data), str(tmp_path / "out.npz")])
        exec(compile(text, program.name, "exec"), {"__name__": "__main__"})
        return rounds.outcome_of(tmp_path / "out.npz")

    return run


def test_the_workload_is_what_was_asked_for(data):
    with np.load(data) as arrays:
        inputs, targets, orders = (arrays[name] for name in ("inputs", "targets", "orders"))
        assert (arrays["fc2.weight"].shape, arrays["fc3.bias"].shape) == ((6, 8), (3,))
    assert (inputs.shape, inputs.dtype, targets.dtype) == ((CLIENTS, SAMPLES, 12), np.float32, np.int64)
    assert np.abs(inputs).max() <= 1
    assert set(targets.flat) <= set(range(3))
    np.testing.assert_array_equal(np.sort(orders), np.broadcast_to(np.arange(SAMPLES), (ROUNDS, CLIENTS, SAMPLES)))
    assert not np.array_equal(orders[0], orders[1])


def test_one_step_of_the_reference_is_the_gradient_of_a_softmax(tmp_path):
    data = tmp_path / "step.npz"
    rounds.write_workload(data, clients=1, samples=4, rounds=1, widths=(5, 3), batch_size=4, lr=0.1)
    _, start, after = reference.reference_of(data)
    with np.load(data) as stored:
        x, y = stored["inputs"][0].astype(np.float64), stored["targets"][0]
    scores = np.exp(x @ start["fc1.weight"].T + start["fc1.bias"])
    error = (scores / scores.sum(1, keepdims=True) - np.eye(3)[y]) / 4
    np.testing.assert_allclose(after["fc1.weight"], start["fc1.weight"] - 0.1 * error.T @ x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(after["fc1.bias"], start["fc1.bias"] - 0.1 * error.sum(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("program", "library"), [(PLAIN, "torch"), (OURS, "pfl_lightning")])
def test_the_plain_loop_and_our_own_program_do_the_steps_of_the_reference(program, library, data, outcome):
    found = outcome(program, data)
    assert len(found.seconds) == ROUNDS
    assert min(found.seconds) > 0
    assert set(found.versions) == {"python", "torch", "numpy", library}
    assert rounds.check(found, reference.reference_of(data)) < 1e-4  # float32 against float64


@pytest.mark.parametrize(
    ("program", "changes"),
    [
        (PLAIN, {"a client": ("range(clients)", "range(1, clients)"), "mean": ("1 / clients", "1 / (clients - 1)")}),
        (PLAIN, {"a step": (".split(work.batch_size)", ".split(work.batch_size)[:-1]")}),
        (PLAIN, {"momentum": (", momentum=work.momentum", "")}),
        (OURS, {"order": ('"order", 0)', '"order", 1)')}),
    ],
    ids=str,
)
def test_a_program_that_does_something_else_is_caught_in_the_first_small_run(program, changes, outcome, tmp_path):
    data = tmp_path / "small.npz"
    rounds.write_workload(data, **rounds.SMALL)
    with pytest.raises(PeerError, match="of the update away from the reference"):
        rounds.check(outcome(program, data, **changes), reference.reference_of(data))


def test_weights_and_rounds_must_be_complete(data):
    wanted = reference.reference_of(data)
    after = wanted[-1]
    seconds = [0.1] * ROUNDS
    assert rounds.check(Outcome(seconds, after, {}), wanted) == 0
    for found, reason in (
        (Outcome([0.1], after, {}), "1 rounds instead of 2"),
        (Outcome(seconds, {"fc1.weight": after["fc1.weight"]}, {}), "other weights than fc1"),
        (Outcome(seconds, {**after, "fc1.bias": after["fc1.bias"] * np.nan}, {}), "nan"),
    ):
        with pytest.raises(PeerError, match=reason):
            rounds.check(found, wanted)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise RuntimeError('no such luck')", r"^RuntimeError: no such luck$"),
        ("import sys; print('ERROR: first', 'warning', sep='\\n', file=sys.stderr); sys.exit(1)", "^ERROR: first$"),
        ("import sys; sys.exit(3)", "^exit status 3$"),
        ("", "wrote no results"),
    ],
)
def test_a_program_that_fails_gives_its_reason_in_one_line(data, tmp_path, text, reason):
    (tmp_path / "program.py").write_text(text)
    with pytest.raises(PeerError, match=reason):
        rounds.run_program(INTERPRETER, tmp_path / "program.py", data, threads=1)


def test_a_program_gets_as_many_cores_and_threads_as_were_asked_for(data, tmp_path):
    told = "len(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'], os.environ['MKL_NUM_THREADS']"
    (tmp_path / "program.py").write_text(f"import os, sys\nsys.exit(repr(({told})))")
    before = os.sched_getaffinity(0)
    with pytest.raises(PeerError, match=r"^\(1, '1', '1'\)$"):
        rounds.run_program(INTERPRETER, tmp_path / "program.py", data, threads=1)
    assert os.sched_getaffinity(0) == before


def test_an_environment_is_built_once_and_again_when_its_pins_change(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(environments, "execute", lambda command, timeout: calls.append([str(part) for part in command]))
    monkeypatch.setattr(environments.shutil, "rmtree", lambda folder, ignore_errors: folder.mkdir(exist_ok=True))
    peer = Peer("some_round.py", ("some==1.0",))
    interpreter = rounds.environment(peer, tmp_path)
    assert interpreter == tmp_path / "some" / "bin" / "python"
    assert calls[0] == [sys.executable, "-m", "venv", str(tmp_path / "some")]
    assert calls[1][-1] == "some==1.0"
    assert rounds.environment(peer, tmp_path) == interpreter
    assert len(calls) == 2
    rounds.environment(Peer("some_round.py", ("some==2.0",)), tmp_path)
    assert len(calls) == 4


def test_a_peer_needs_an_environment_only_if_it_has_requirements(tmp_path):
    assert rounds.environment(rounds.PEERS["plain_torch"], tmp_path / "nothing") == INTERPRETER
    assert not (tmp_path / "nothing").exists()


def test_peers_that_cannot_be_built_or_run_do_not_stop_the_others(outcome, tmp_path, monkeypatch):
    def run_here(_, program, data, threads):
        if program == lazy:
            raise PeerError("too lazy")
        return outcome(program, data)

    lazy = tmp_path / "lazy.py"
    monkeypatch.setattr(rounds, "run_program", run_here)  # a process takes seconds to import torch

    def cannot_build(command, timeout):
        raise PeerError("no ancient==0.1 for this Python")

    monkeypatch.setattr(environments, "execute", cannot_build)
    monkeypatch.setitem(rounds.PEERS, "ancient", Peer("ancient.py", ("ancient==0.1",)))
    records = rounds.measure_peers(tmp_path, ["ancient"], lazy, repeats=2, threads=1, clients=2, samples=20, rounds=2)
    plain, ancient, ours = records
    assert [row["backend"] for row in records] == ["plain_torch", "ancient", "ours"]
    assert plain["workload"] == "peers-mlp"
    assert plain["ratio_to_plain"] == 1
    assert plain["spread"][0] <= plain["seconds"] <= plain["spread"][1]
    assert plain["deviation"] < 0.01
    assert ancient["seconds"] is ancient["ratio_to_plain"] is ancient["spread"] is None
    assert "this Python" in ancient["reason"]
    assert ours["reason"] == "too lazy"
    json.dumps(records)


def test_ratios_are_taken_within_a_repeat():
    plain = [Outcome([99, 1, 1, 2], {}, {}), Outcome([99, 3, 3, 3], {}, {}), Outcome([99, 2, 2, 2], {}, {})]
    peer = [Outcome([99, 2, 2, 2], {}, {}), Outcome([99, 3, 3, 3], {}, {}), Outcome([99, 9, 6, 1], {}, {"a": "1"})]
    row = rounds.record("peer", peer, plain, [0.001, 0.003, 0.002])
    assert row["ratio_to_plain"] == 2  # of 2/1, 3/3, 6/2
    assert row["seconds"] == 3  # of 2 2 2 3 3 3 9 6 1
    assert row["spread"] == [1, 9]
    assert row["deviation"] == 0.003
    assert row["versions"] == {"a": "1"}


def test_every_peer_has_its_program_and_pins():
    assert list(rounds.PEERS)[:2] == ["plain_torch", "jax_scan"]
    for name, peer in rounds.PEERS.items():
        assert (peer.name, (rounds.HERE / peer.program).is_file()) == (name, True)
        assert all("==" in pin for pin in peer.requirements)
