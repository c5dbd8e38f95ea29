"""The processes of a run: how they start, meet, agree and end. Lightning starts them, or torchrun, or SLURM."""

import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from inspect import signature
from typing import Any, NoReturn

import lightning.pytorch as pl
import torch.distributed as dist
from jsonargparse import Namespace
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy, Strategy
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from lightning.pytorch.utilities import rank_zero_only
from torch.distributed.constants import default_pg_timeout

from pfl_lightning import processes
from pfl_lightning.cli.lifeline import GRACE, Ending, Lifeline, Place
from pfl_lightning.cli.parser import PflParser
from pfl_lightning.errors import PflError, one_line

LAUNCHERS: tuple[type[ClusterEnvironment], ...] = (TorchElasticEnvironment, SLURMEnvironment)  # in Lightning's order
MEETING = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")  # where machines without a launcher meet
STARTED_BY = "PFL_STARTED_BY"  # in the environment of a process that another one has started: the id of that
HERE = ("root", "default_root_dir")  # settings whose keys end so may differ between machines
WHERE = {"accelerator", "devices", "num_nodes", "strategy", "plugins"}  # trainer options that say where a run is
LOST = ("gloo/", "NCCL", "pair closure")  # in the errors of a collective that has lost another process
NEWS = 5.0  # seconds until it is known which process is lost


class Crew:
    """The processes of a run of the command line: the failure of one ends all.

    Attributes:
        local_rank: Number of this process on its machine, from 0.
    """

    def __init__(self) -> None:
        self.local_rank = 0
        self._lifeline: Lifeline | None = None
        self._launcher: ClusterEnvironment | None = None
        self._started: list[subprocess.Popen[bytes]] = []

    def meet_early(self) -> None:
        """Have the processes that torchrun or SLURM has started meet before one of them can fail.

        Raises:
            PflError: If one does not come.
        """
        kind = next((kind for kind in LAUNCHERS if kind.detect()), None)
        if kind is None:
            return
        try:
            self._launcher = kind()
        except RuntimeError as error:
            raise PflError(f"SLURM: {one_line(error)}") from error
        if self._launcher.world_size() > 1:
            self._meet(self._launcher, default_pg_timeout.total_seconds())

    def join(self, trainer: Namespace) -> None:
        """Start the processes that the trainer's settings ask for, unless they run, and form their group.

        Raises:
            PflError: If that is not possible, or one of them does not come.
        """
        if self._lifeline is None and is_alone(trainer):
            return
        strategy = strategy_of(trainer)
        self._check(strategy, trainer)
        if isinstance(strategy, DDPStrategy) and strategy.world_size > 1:
            launcher = strategy.launcher
            assert isinstance(launcher, _SubprocessScriptLauncher)
            if not launcher.cluster_environment.creates_processes_externally:
                os.environ[STARTED_BY] = str(os.getpid())
            options = trainer.strategy.init_args if isinstance(trainer.strategy, Namespace) else {}
            launcher.launch(self._form_group, strategy, launcher, options.get("timeout") or default_pg_timeout)

    def end(self, ending: Ending, error: BaseException | None = None) -> Ending | None:
        """End together with the others.

        Args:
            ending: How this process ends by itself.
            error: What ends it.

        Returns:
            How it has to end instead, if it has only lost the others.
        """
        theirs = None
        if self._lifeline is not None:
            if error is not None and _has_lost_others(error):
                ending = Ending(1, f"no answer from the other processes: {one_line(error)}")
                theirs = self._lifeline.news(NEWS) or (ending if self._lifeline.place.rank == 0 else Ending(1))
            self._lifeline.close(ending)
        if error is None and dist.is_initialized():
            dist.destroy_process_group()
        for process in self._started:
            try:
                process.wait(GRACE + 1)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                process.kill()
        return theirs

    def _form_group(self, strategy: DDPStrategy, launcher: _SubprocessScriptLauncher, timeout: Any) -> None:
        self._started = launcher.procs[:]
        launcher.procs.clear()  # Lightning's observer of them would kill this process without a word
        environment = strategy.cluster_environment
        assert environment is not None
        if self._lifeline is None:
            self._meet(environment, timeout.total_seconds())
        strategy.setup_environment()

    def _meet(self, environment: ClusterEnvironment, seconds: float) -> None:
        """Connect this process with the others."""
        rank_zero_only.rank = environment.global_rank()  # type: ignore[attr-defined]
        self.local_rank = environment.local_rank()
        place = Place(
            environment.global_rank(),
            environment.world_size(),
            environment.main_address,
            environment.main_port,
            has_store=os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )
        met = threading.Event()
        if self.local_rank and STARTED_BY in os.environ:
            threading.Thread(target=_follow_parent, args=(met,), daemon=True).start()
        self._lifeline = Lifeline(place, seconds, self._check_started)
        met.set()
        signal.signal(signal.SIGTERM, terminate)

    def _check_started(self) -> None:
        """Refuse to wait for a process that has ended.

        Raises:
            PflError: If one has.
        """
        for rank, process in enumerate(self._started, start=1):
            if process.poll() is not None:
                raise PflError(f"rank {rank} ended with exit code {process.returncode} before it joined the others")

    def _check(self, strategy: Strategy, trainer: Namespace) -> None:
        """Refuse more processes than this machine has cores for, or others than a launcher has started.

        Raises:
            PflError: If there are.
        """
        local, cores = getattr(strategy, "num_processes", 1), os.cpu_count() or 1
        if strategy.root_device.type == "cpu" and local > cores:
            raise PflError(
                f"trainer.devices: {trainer.devices} is not possible; allowed: 1 to {cores}, this CPU's cores"
            )
        wanted = local * trainer.num_nodes
        if self._launcher is not None and self._launcher.world_size() != wanted:
            raise PflError(
                f"trainer.devices: {trainer.devices} with trainer.num_nodes: {trainer.num_nodes} is not possible; "
                f"allowed: as many processes as were started, {self._launcher.world_size()}"
            )
        is_alone = isinstance(getattr(strategy, "cluster_environment", None), LightningEnvironment)
        if is_alone and trainer.num_nodes > 1 and (missing := [name for name in MEETING if name not in os.environ]):
            raise PflError(
                f"trainer.num_nodes: {trainer.num_nodes} is not possible without {', '.join(missing)} in the "
                "environment; allowed: 1, or torchrun, or SLURM's srun"
            )


class OrderlyEnd(pl.Callback):
    """Ends an evaluation on SIGTERM or SIGUSR1: Lightning would wait in all processes for the first one's."""

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the signals over from Lightning, which will restore what was there before."""
        for number in (signal.SIGTERM, signal.SIGUSR1) if processes.count() > 1 else ():
            signal.signal(number, terminate)

    on_test_start = on_validation_start


def is_alone(trainer: Namespace) -> bool:
    """Whether the settings of a trainer ask for one process."""
    return str(trainer.devices) == "1" and trainer.num_nodes == 1


def strategy_of(trainer: Namespace) -> Strategy:
    """Lightning's strategy for the settings of a trainer, which knows where its processes are."""
    parser = PflParser()
    parser.add_class_arguments(
        pl.Trainer, "trainer", skip=set(signature(pl.Trainer).parameters) - WHERE, instantiate=False
    )
    where = parser.instantiate(Namespace(trainer=Namespace({name: trainer[name] for name in WHERE}))).trainer
    return pl.Trainer(**vars(where), logger=False, enable_progress_bar=False).strategy


def agree(facts: Mapping[str, Any]) -> None:
    """Refuse a run whose processes differ in something.

    Args:
        facts: What must be the same in all processes, by name.

    Raises:
        PflError: If it is not; it names the first difference.
    """
    first, *others = processes.gathered(dict(facts))
    for rank, other in enumerate(others, start=1):
        for name in sorted(first.keys() | other.keys()):
            if (one := first.get(name)) != (another := other.get(name)):
                raise PflError(f"{name}: {another} on rank {rank} is not possible; allowed: {one}, as on rank 0")


def terminate(number: int, *_: object) -> NoReturn:
    """End this process in order, when a signal asks for it."""
    raise SystemExit(128 + number)


def _follow_parent(met: threading.Event) -> None:
    """End with the process that has started this one, until they have met."""
    while not met.wait(1.0):
        if str(os.getppid()) != os.environ[STARTED_BY]:
            os._exit(1)


def _has_lost_others(error: BaseException) -> bool:
    """Whether an error comes from a collective that some process has not taken part in."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return any(isinstance(e, dist.DistError) or any(word in str(e) for word in LOST) for e in chain)
