"""A FedAvg round in other libraries: environments of their own, the same steps for all, measured in turns.

``python tools/benchmark.py --peers true --peers_root FOLDER`` builds what is missing under FOLDER and measures every
peer. Each is a small program beside this file, run by its own interpreter; its weights must be those at which a float64
loop arrives.
"""

import json
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from benchmarks import timing
from benchmarks.timing import Record

from peers.environments import PEERS, PeerError, environment, execute
from peers.reference import Outcome, check, reference_of, write_workload

HERE = Path(__file__).resolve().parent
# a client less moves the mean of 100 by less than the tolerance, but that of 4 by far more: all begin with these
SMALL: dict[str, Any] = {"clients": 4, "samples": 30, "rounds": 2}
WORKLOAD = "peers-mlp"
PLAIN = "plain_torch"
OURS = "ours"
PATIENCE = 1800  # seconds, for one run of a program


def run_program(interpreter: Path, program: Path, data: Path, threads: int) -> Outcome:
    """Runs one program on the workload.

    Raises:
        PeerError: It fails, or hands back something else than was agreed.
    """
    paths = [str(HERE.parent)]
    if interpreter == Path(sys.executable):  # others see nothing but their own packages
        paths += filter(None, [os.environ.get("PYTHONPATH")])
    environ = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    environ["PYTHONPATH"] = os.pathsep.join(paths)
    with TemporaryDirectory() as folder, pinned(threads):
        out = Path(folder) / "out.npz"
        execute([interpreter, program, data.absolute(), out], PATIENCE, environ=environ)
        return outcome_of(out)


def outcome_of(path: Path) -> Outcome:
    """What a program has written.

    Raises:
        PeerError: If it is not what was agreed.
    """
    try:
        with np.load(path) as stored:
            arrays = {name: stored[name] for name in stored.files}
        seconds = arrays.pop("seconds").tolist()
        versions = json.loads(arrays.pop("versions").item())
    except (OSError, KeyError, ValueError) as error:
        raise PeerError(f"wrote no results that can be read: {error}") from None
    return Outcome(seconds, arrays, versions)


@contextmanager
def pinned(threads: int) -> Iterator[None]:
    """Leaves as many cores as threads to what is started here: XLA and Ray take all that they may run on."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if threads >= len(cores):
        yield
        return
    os.sched_setaffinity(0, sorted(cores)[:threads])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def measure_peers(
    root: Path,
    names: Sequence[str],
    ours: Path,
    repeats: int,
    threads: int,
    *,
    clients: int = 100,
    samples: int = 150,
    rounds: int = 4,
) -> list[Record]:
    """One record a peer; the plain loop is always among them, since the others are put in relation to it.

    Args:
        root: Folder of the environments; those that are missing are built.
        names: Peers to measure.
        ours: Our own program, run by this interpreter.
        repeats: How often every program is run, one after the other and all over again.
        threads: Cores for each program.
        clients: Clients of a round.
        samples: Samples of a client.
        rounds: Rounds of a process; the first one warms up and is not counted.
    """
    order = [*dict.fromkeys([PLAIN, *names]), OURS]
    programs = {OURS: (Path(sys.executable), ours)}
    reasons: dict[str, str] = {}
    for name in order[:-1]:
        try:
            programs[name] = (environment(PEERS[name], root), HERE / PEERS[name].program)
        except PeerError as error:
            reasons[name] = str(error)
    outcomes: dict[str, list[Outcome]] = {name: [] for name in order}
    deviations: dict[str, list[float]] = {name: [] for name in order}
    with TemporaryDirectory() as folder:
        small = Path(folder) / "small.npz"
        data = Path(folder) / "data.npz"
        write_workload(small, **SMALL)
        write_workload(data, clients, samples, rounds)
        references = {path: reference_of(path) for path in (small, data)}
        for workload in (small, *[data] * repeats):
            for name in [name for name in order if name not in reasons]:
                try:
                    outcome = run_program(*programs[name], workload, threads)
                    deviations[name].append(check(outcome, references[workload]))
                    outcomes[name].append(outcome)
                except PeerError as error:
                    reasons[name] = str(error)
    plain = [] if PLAIN in reasons else outcomes[PLAIN][1:]
    return [
        missing(name, reasons[name])
        if name in reasons
        else record(name, outcomes[name][1:], plain, deviations[name][1:])  # without the small workload
        for name in order
    ]


def record(name: str, outcomes: Sequence[Outcome], plain: Sequence[Outcome], deviations: Sequence[float]) -> Record:
    """What was measured of one peer; the ratio is the median over the repeats of its time / the plain loop's."""
    seconds = [second for outcome in outcomes for second in outcome.seconds[1:]]
    ratios = [typical(outcome) / typical(of_plain) for outcome, of_plain in zip(outcomes, plain, strict=False)]
    return timing.record(WORKLOAD, name, seconds) | {
        "ratio_to_plain": statistics.median(ratios) if ratios else None,
        "versions": outcomes[-1].versions,
        "deviation": max(deviations),
    }


def typical(outcome: Outcome) -> float:
    """Median of a process's rounds after its first."""
    return statistics.median(outcome.seconds[1:])


def missing(name: str, reason: str, workload: str = WORKLOAD) -> Record:
    """The record of a peer that could not be measured."""
    return {
        "workload": workload,
        "backend": name,
        **dict.fromkeys(("seconds", "ratio_to_plain", "spread")),
        "reason": reason,
    }
