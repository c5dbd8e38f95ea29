"""Runs from Python, as ``pfl fit`` makes them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import lightning.pytorch as pl
from torch import nn

from pfl_lightning import report
from pfl_lightning.callbacks.checkpoint_files import BEST
from pfl_lightning.callbacks.run_folder import CHECKPOINTS
from pfl_lightning.cli.quiet import built_from, client_module, run_quietly, settings_from
from pfl_lightning.cli.runs import Resume, find_resume, settings_along
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.errors import PflError
from pfl_lightning.methods import Method, load_method
from pfl_lightning.recipes import Recorded, given, recipe

if TYPE_CHECKING:
    import pandas as pd

Checkpoint = Literal["last", "best"]


class Experiment:
    """A method, a data set and a number of rounds: what ``pfl fit`` runs, from Python.

    The method and the data set are recipes: every run makes them anew from the arguments that they were made with, so
    the same experiment gives the same numbers again, and those of the same command. Nothing is printed. Arguments that
    a file cannot hold, such as arrays and functions, are used as they are.

    Args:
        method: The method.
        data: The data set.
        rounds: Communication rounds.
        seed: ``seed_everything``, which the data set's own seed follows.
        callbacks: Callbacks beside the usual ones, such as ``StageDoubling(n0=2)``, which settings can name; others
            are used as they are.
        folder: Where run folders are: ``<folder>/<Method>-<Data>/version_N``.
        trainer: Other options of the trainer, such as ``val_check_interval=5`` or ``enable_progress_bar=True``.

    Examples:
        >>> from pfl_lightning.data import Digits
        >>> from pfl_lightning.methods import FedRep
        >>> experiment = Experiment(FedRep(lr=0.05), Digits(num_clients=10), rounds=20)
        >>> experiment.settings["model"]["init_args"]
        {'lr': 0.05}
    """

    method: Method | None
    data: FederatedDataModule | None
    callbacks: list[pl.Callback]
    settings: dict[str, Any]

    def __init__(
        self,
        method: Method,
        data: FederatedDataModule,
        rounds: int = 100,
        *,
        seed: int = 1,
        callbacks: Sequence[pl.Callback] = (),
        folder: str | Path = "runs",
        **trainer: Any,
    ) -> None:
        if "seed" in given(data):
            raise PflError("data.seed: not possible here, it follows the experiment's; allowed: Experiment(seed=...)")
        self.method, self.data = method, data
        self.callbacks = [callback for callback in callbacks if not isinstance(callback, Recorded)]
        named = [recipe(callback) for callback in callbacks if isinstance(callback, Recorded)]
        own = {"max_steps": rounds, "default_root_dir": str(folder), "callbacks": named or None}
        self.settings = {
            "seed_everything": seed,
            "model": recipe(method),
            "data": recipe(data),
            "trainer": {"enable_progress_bar": False, **trainer, **own},
        }

    @classmethod
    def from_settings(cls, *words: str) -> "Experiment":
        """The experiment of settings files and options.

        Args:
            words: Settings files, by paths or by names such as ``quickstart``, and options as on the command line, such
                as ``--model.lr=0.1``.

        Raises:
            PflError: If they are wrong.
        """
        args = ["--trainer.enable_progress_bar=false"]
        args += [word if word.startswith("-") else f"--config={word}" for word in words]
        experiment = cls.__new__(cls)
        experiment.method, experiment.data, experiment.callbacks = None, None, []
        experiment.settings = settings_from(args)
        return experiment

    def fit(self, resume: bool = False) -> "Run":
        """Train, in the next run folder.

        Args:
            resume: Continue the newest run in its folder instead.

        Raises:
            PflError: If the settings are wrong, or there is nothing to continue.
            KeyboardInterrupt: After the current round was saved, if the process is interrupted.
        """
        session = run_quietly("fit", {**self.settings, **({"ckpt_path": "last"} if resume else {})}, self.callbacks)
        return Run(session.run_folder, self.method, self.data)


class Run:
    """A run folder, of ``pfl fit`` or of an ``Experiment``.

    Args:
        folder: The folder.
        method: The method, if its checkpoint cannot make it again, since it has functions or objects of a program.
        data: The data set, if its checkpoint cannot make it again, since it has arrays of a program.
    """

    def __init__(
        self, folder: str | Path, method: Method | None = None, data: FederatedDataModule | None = None
    ) -> None:
        self.folder = Path(folder)
        objects = {"model": method, "data": data}
        self.recipes = {part: recipe(made) for part, made in objects.items() if made is not None}

    def test(self, checkpoint: Checkpoint = "last", **data: Any) -> "pd.DataFrame":
        """Evaluate on the test samples, as ``pfl test`` does.

        Args:
            checkpoint: The ``last`` round, or the ``best`` one.
            data: Options of the data set that may change: ``root``, ``new_clients`` and ``new_head_epochs``.

        Returns:
            A row for each split, model and client, which is also in the folder.

        Raises:
            PflError: If there is no such checkpoint, the data are others, or an option may not change.
        """
        return self._evaluate("test", checkpoint, data)

    def validate(self, checkpoint: Checkpoint = "last", **data: Any) -> "pd.DataFrame":
        """Evaluate on the validation samples, as ``pfl validate`` does; see ``test``."""
        return self._evaluate("validate", checkpoint, data)

    def results(self) -> "pd.DataFrame":
        """A row for each evaluation of training, split, model and quantity; see ``pfl_lightning.results``."""
        return report.results(self.folder)

    def clients(self) -> "pd.DataFrame":
        """A row for each evaluation of training, split, model and client; see ``pfl_lightning.clients``."""
        return report.clients(self.folder)

    def method(self, checkpoint: Checkpoint = "last") -> Method:
        """The trained method.

        Raises:
            PflError: If there is no such checkpoint, or it cannot make the method again.
        """
        found = self._find(checkpoint)
        if "model" not in self.recipes:
            settings_along(found, data=None)  # refuses a method that only a program can make
            return load_method(found.checkpoint)
        method: Method = built_from(self._settings(found)).model
        method.on_load_checkpoint(found.content)
        method.load_state_dict(found.content["state_dict"])
        return method

    def client(self, client: int, model: str | None = None, checkpoint: Checkpoint = "last", **data: Any) -> nn.Module:
        """One client's model; see ``Method.client``. If it needs the client's samples, the data set is loaded.

        Args:
            client: The client's id.
            model: Name of the model, such as ``stored`` or ``finetuned``. Default: one that needs no training.
            checkpoint: The ``last`` round, or the ``best`` one.
            data: Options of the data set that may change, such as ``root``.

        Raises:
            PflError: If there is no such client, model or checkpoint, or the data are others.
        """
        found = self._find(checkpoint)
        return client_module(self.method(checkpoint), client, model, lambda: self._settings(found, data), found)

    def _find(self, checkpoint: Checkpoint) -> Resume:
        best = self.folder / CHECKPOINTS / BEST
        return find_resume(str(best if checkpoint == "best" else self.folder), Path(), training=False)

    def _settings(self, found: Resume, data: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
        settings = settings_along(found, **self.recipes)
        changed = {**settings["data"], "init_args": {**settings["data"]["init_args"], **data}}
        return {**settings, "data": changed}

    def _evaluate(self, command: str, checkpoint: Checkpoint, data: Mapping[str, Any]) -> "pd.DataFrame":
        import pandas as pd

        found = self._find(checkpoint)
        session = run_quietly(command, {**self._settings(found, data), "ckpt_path": str(found.checkpoint)})
        rows = pd.DataFrame(session.table.rows)
        rows.insert(0, "round", found.content["global_step"])
        return rows.assign(accuracy=rows["correct"] / rows["samples"])
