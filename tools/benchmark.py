"""Seconds of communication rounds: each backend and a plain loop over clients, measured in turns in one process.

``python tools/benchmark.py``, or for instance ``--workloads '[fedavg-mlp, fedrep-mlp]' --repeats 3 --json FILE``.
Before anything is timed, a round of each in float64 shows that all of them do the same work.

``--peers true --peers_root FOLDER``, or ``--peers '[jax_scan]'``, measures other libraries as well, whose environments
are built under FOLDER.

``--accelerator gpu --variants true`` measures on a GPU, and tries other ways to run a round there.
"""

import json as json_format
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, get_args

import torch
from benchmarks import evaluation, loading, report, training, voting
from benchmarks.device import CPU, Accelerator, device_of
from benchmarks.figure import ratio_figure
from benchmarks.population import measure_population
from benchmarks.timing import Contest, Record, measure
from benchmarks.variants import VARIANTS
from benchmarks.workloads import POPULATIONS, WORKLOADS, RandomClients
from jsonargparse import ArgumentParser, auto_cli
from matplotlib.backend_bases import FigureCanvasBase
from peers import rounds
from peers.environments import PEERS, PeerError
from peers.tracks import TRACKS

from pfl_lightning.bounds import PositiveInt
from pfl_lightning.client import BackendName
from pfl_lightning.errors import PflError
from pfl_lightning.processes import keep_freed_memory
from pfl_lightning.report import save_figure

CONTESTS: dict[str, Callable[..., Contest]] = {
    "data-loading": loading.contest,
    "evaluation": evaluation.contest,
    "votes": voting.contest,
}  # the other workloads train
OURS = rounds.HERE / "ours.py"


class OneLineParser(ArgumentParser):
    """Answers a wrong command line with one line."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Say what is wrong."""
        refuse(message)


def refuse(message: str) -> NoReturn:
    """Answer a wrong command line with one line."""
    print(f"benchmark: error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)


def choose(key: str, names: Sequence[str] | bool | None, allowed: Sequence[Any]) -> list[Any]:
    """The names that were asked for; all of them when None or True, and none when False."""
    if isinstance(names, str):
        names = [names]
    wanted = allowed if names is None or names is True else names or []
    for name in wanted:
        if name not in allowed:
            refuse(f"{key}: {name} is not possible; allowed: {', '.join(allowed)}")
    return [name for name in allowed if name in wanted]


def check_files(json: Path | None, figure: Path | None) -> None:
    """Refuse files that cannot be written, before hours are spent."""
    for key, path in (("json", json), ("figure", figure)):
        if path and (path.is_dir() or not path.parent.is_dir()):
            refuse(f"{key} must be a file in an existing folder, got {path}")
    endings = sorted(FigureCanvasBase.get_supported_filetypes())
    if figure and figure.suffix[1:] not in endings:
        refuse(f"figure: {figure} is not possible; allowed extensions: {', '.join(endings)}")


def check_peers(peers: bool, checkouts: Mapping[str, Path], peers_root: Path | None, accelerator: Accelerator) -> None:
    """Refuse what other libraries cannot be measured with."""
    if (peers or checkouts) and peers_root is None:
        refuse("peers_root must be a folder for the environments of peers and tracks, got none")
    if (peers or checkouts) and accelerator != "cpu":
        refuse(f"accelerator must be cpu with peers and tracks, got {accelerator}")
    for name, checkout in checkouts.items():
        track = TRACKS[name]
        if not (checkout / track.entry).is_file():
            refuse(f"tracks.{name} must be a checkout of {track.library}, with {track.entry}, got {checkout}")


def suited(name: str, ways: Sequence[str], attempt: Callable[[str], object]) -> list[str]:
    """The backends or variants that can run a network; what is wrong with the others is said."""
    able = []
    for way in ways:
        try:
            attempt(way)
            able.append(way)
        except PflError as error:
            print(f"{name}: {way} is left out: {error}", file=sys.stderr)
    return able


def measure_workload(
    name: str,
    backends: Sequence[BackendName],
    repeats: int,
    threads: int,
    device: torch.device = CPU,
    variants: Sequence[str] = (),
) -> list[Record]:
    """The records of one workload."""
    print(f"{name}: {repeats} repeats, {threads} threads", file=sys.stderr)
    if name in POPULATIONS:
        return measure_population(name, POPULATIONS[name], repeats, threads, device)
    workload = WORKLOADS[name]
    data = RandomClients(workload, device)
    tried = backends if name in CONTESTS else [*backends, *variants]
    able = suited(name, tried, lambda way: training.MAKERS[way](workload, data))
    contest = CONTESTS.get(name, training.contest)(workload, able, device)
    return measure(name, contest, repeats)


def measure_track(name: str, checkout: Path, data_root: Path, root: Path, repeats: int, threads: int) -> list[Record]:
    """The records of another library's own command and of ours."""
    print(f"{name}: {repeats} repeats, {threads} threads", file=sys.stderr)
    try:
        return TRACKS[name].measure(name, checkout, data_root, root, repeats, threads)
    except (PeerError, PflError) as error:
        return [rounds.missing(TRACKS[name].library, str(error), name)]


def main(
    workloads: list[str] | str | None = None,
    backends: list[str] | str | None = None,
    repeats: PositiveInt = 5,
    threads: PositiveInt | None = None,
    accelerator: Accelerator = "cpu",
    variants: bool | list[str] = False,
    json: Path | None = None,
    figure: Path | None = None,
    peers: bool | list[str] = False,
    peers_root: Path | None = None,
    tracks: dict[str, Path] | None = None,
    root: Path = Path("data"),
) -> None:
    """Time communication rounds of every backend against a plain loop over clients.

    Args:
        workloads: One or more of fedavg-mlp, fedrep-mlp, srpfl-mlp, ragged-mlp, fedavg-dnn, fedavg-logistic,
            fedprox-mlp, ditto-mlp, heurfedamp-mlp, pfedme-mlp, fedmac-mlp, dpsgd-mlp, deprl-mlp, deltafl-mlp,
            adamw-mlp, apfl-mlp, fedproto-mlp, scaffold-mlp, moon-lenet, fedbuff-mlp (100 of 200 clients in flight),
            fedavg-lenet, fedavg-lenet-100, fedavg-cnn (PFLlib's), fedprox-lenet, deltafl-lenet, fedrep-lenet, the same
            as a module that is none of ours (fedrep-lenet-split, fedrep-lenet-opaque), fedavg-resnet18, fedavg-gru,
            other targets than classes (multilabel-mlp, forecast-mlp, segment-unet, next-char-gru), clients with four
            networks (families-mlp, families-cnn),
            adapters in a ViT (lora-tiny-vit, lora-small-vit, lora-last-third, lora-fedrep) or in a text encoder
            (lora-bert, which needs transformers and peft), data-loading, evaluation, votes (where the plain round has a
            weighted mean), population, gossip-population, lora-population; all by default, and none for [].
        backends: One or more of auto, sequential, batched; all by default. Populations always run with auto, and
            data loading is the same for all.
        repeats: Measured rounds of each; for populations fresh processes, for peers runs of their programs.
        threads: Threads that torch may use; its own choice by default.
        accelerator: Device on which all is measured, the plain loop too; on a gpu it is also counted how often the
            processor waits for it. Other libraries are measured on a cpu only.
        variants: Whether other ways to run our round are tried too, or the names of some: bf16, vmapped, compiled,
            graphs.
        json: File to write the measurements to.
        figure: Picture of the ratios; its ending says the format.
        peers: Whether other libraries are measured too, or the names of some: plain_torch, jax_scan, fedjax.
        peers_root: Folder of their environments; those that are missing are built, which takes minutes.
        tracks: Checkouts of libraries, whose own commands are then measured beside pfl fit, also in environments of
            their own: pfllib, niid_bench (of Flower) and pfl_research, such as {pfllib: FOLDER}.
        root: Folder with a folder of files for each data set, of which the tracks need fashion_mnist and cifar10.
    """
    chosen = choose("workloads", workloads, [*WORKLOADS, *POPULATIONS])
    engines = choose("backends", backends, get_args(BackendName))
    check_files(json, figure)
    libraries = choose("peers", peers, list(PEERS))
    checkouts = tracks or {}
    choose("tracks", list(checkouts), list(TRACKS))
    check_peers(bool(libraries), checkouts, peers_root, accelerator)
    tried = choose("variants", variants, list(VARIANTS))
    try:
        device = device_of(accelerator)
    except PflError as error:
        refuse(str(error))
    torch.set_num_threads(threads or torch.get_num_threads())
    threads = torch.get_num_threads()
    records: list[Record] = []
    for name in chosen:
        records += measure_workload(name, engines, repeats, threads, device, tried)
    if peers_root is not None and libraries:
        print(f"peers: {repeats} repeats, {threads} threads", file=sys.stderr)
        records += rounds.measure_peers(peers_root, libraries, OURS, repeats, threads)
    if peers_root is not None:
        for name, checkout in checkouts.items():
            records += measure_track(name, checkout, root, peers_root, repeats, threads)
    show(records, repeats, threads, json, figure)


def show(records: Sequence[Record], repeats: int, threads: int, json: Path | None, figure: Path | None) -> None:
    """Print the table, and write the files."""
    print(f"{report.header(records, repeats, threads)}\n\n{report.table(records)}")
    if notes := report.notes(records):
        print(f"\n{notes}")
    if json:
        json.write_text(json_format.dumps(records, indent=2) + "\n")
    if figure:
        save_figure(ratio_figure(records), figure, dpi=150)


def run(args: list[str]) -> None:
    """The command line."""
    keep_freed_memory()
    auto_cli(main, args=args, as_positional=False, parser_class=OneLineParser)


if __name__ == "__main__":
    run(sys.argv[1:])
