"""A finished run, read from its folder."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from torch import nn

from pfl_lightning import report
from pfl_lightning.callbacks.round_checkpoint import BEST
from pfl_lightning.callbacks.run_folder import CHECKPOINTS
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.errors import PflError
from pfl_lightning.federation.checkpoints import read_checkpoint
from pfl_lightning.methods import Method, NeedsSamplesError
from pfl_lightning.objects import clone, to_settings
from pfl_lightning.report.run_files import CORRECT, METRICS, read_table
from pfl_lightning.runs.resume import Resume, find_resume, load_method, settings_along
from pfl_lightning.runs.run_settings import RunParts, complete_settings, parts_of
from pfl_lightning.runs.run_setup import Command, check_data
from pfl_lightning.runs.session import Session, without_chatter
from pfl_lightning.runs.trainer_options import refuse_several_processes

if TYPE_CHECKING:
    import pandas as pd

Checkpoint = Literal["last", "best"]


class Run:
    """A run folder, of ``pfl fit`` or of an ``Experiment``.

    Args:
        folder: The folder.
        method: The method, if its checkpoint cannot make it again, since it has functions or objects from Python.
        data: The data set, if its checkpoint cannot make it again, since it has arrays from Python.
    """

    def __init__(
        self, folder: str | Path, method: Method | None = None, data: FederatedDataModule | None = None
    ) -> None:
        self.folder = Path(folder)
        self._method = method
        self._data = data

    def __repr__(self) -> str:
        """The folder, the rounds that are done, and the final test score, as far as they are known."""
        facts = [f"'{self.folder}'"]
        with suppress(PflError):
            rounds = read_table(self.folder / METRICS, ["round"])["round"]
            facts.append(f"round {rounds.max()}")
            facts.append(f"test {report.final_score(self.folder)}")
        return f"<Run {', '.join(facts)}>"

    def test(self, checkpoint: Checkpoint = "last", **data: Any) -> "pd.DataFrame":
        """Evaluate on the test samples, as ``pfl test`` does.

        Args:
            checkpoint: The ``last`` round, or the ``best`` one.
            data: Options of the data set that may change: ``root``, ``new_clients``, ``new_samples``,
                ``new_head_epochs`` and ``new_head_steps``.

        Returns:
            A row for each split, model and client, which is also in the folder.

        Raises:
            PflError: If there is no such checkpoint, the data are others, or an option may not change.
        """
        return self._evaluate("test", checkpoint, data)

    def validate(self, checkpoint: Checkpoint = "last", **data: Any) -> "pd.DataFrame":
        """Evaluate on the validation samples, as ``pfl validate`` does; see ``test``, but not of new clients."""
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
        return self._trained(self._find(checkpoint))

    def client(
        self,
        client: int,
        model: str | None = None,
        checkpoint: Checkpoint = "last",
        merged: bool = True,
        **data: Any,
    ) -> nn.Module:
        """One client's model; see ``Method.client``. If it needs the client's samples, the data set is loaded.

        Args:
            client: The client's id.
            model: Name of the model, such as ``stored`` or ``finetuned``. Default: one that needs no training.
            checkpoint: The ``last`` round, or the ``best`` one.
            merged: Whether adapters are merged into the layers.
            data: Options of the data set that may change, such as ``root``.

        Raises:
            PflError: If there is no such client, model or checkpoint, or the data are others.
        """
        resume = self._find(checkpoint)
        method = self._trained(resume)
        try:
            return method.client(client, model, merged=merged)
        except NeedsSamplesError:
            dataset = self._parts(resume, data).data
            dataset.setup()
            check_data(dataset, resume)
            return method.client(client, model, dataset, merged)

    def _find(self, checkpoint: Checkpoint) -> Resume:
        if checkpoint not in get_args(Checkpoint):
            raise PflError(f"checkpoint: {checkpoint} is not possible; allowed: {', '.join(get_args(Checkpoint))}")
        best = self.folder / CHECKPOINTS / BEST
        return find_resume(str(best if checkpoint == "best" else self.folder), Path())

    def _trained(self, resume: Resume) -> Method:
        if self._method is None:
            return load_method(resume.checkpoint)
        method = clone(self._method)
        method.on_load_checkpoint(read_checkpoint(resume.checkpoint))
        return method

    def _parts(self, resume: Resume, changes: Mapping[str, Any]) -> RunParts:
        """What an evaluation is made of, with some options of the data set changed."""
        if "seed" in changes:
            raise PflError("data.seed is the run's; options such as root and new_clients may change")
        for name, value in changes.items():
            if name.startswith("new_") and isinstance(value, str):
                raise PflError(f"data.{name} must be a number in a program, got the text '{value}'")
        originals = {"model": self._method, "data": self._data}
        from_python = {name: to_settings(original) for name, original in originals.items() if original is not None}
        settings = settings_along(resume, **from_python)
        settings["data"] = {**settings["data"], "init_args": {**settings["data"]["init_args"], **changes}}
        settings = complete_settings(settings)
        clones: dict[str, Any] = {}
        if self._method is not None:
            clones["model"] = clone(self._method)
        if self._data is not None:
            clones["data"] = clone(self._data, **changes, seed=settings["seed_everything"])
        return parts_of(settings, **clones)

    def _evaluate(self, command: Command, checkpoint: Checkpoint, data: Mapping[str, Any]) -> "pd.DataFrame":
        import pandas as pd

        resume = self._find(checkpoint)
        parts = self._parts(resume, data)
        refuse_several_processes(parts.settings, command)
        with without_chatter():
            session = Session(command, parts, resume)
            session.run()
        rows = pd.DataFrame(session.table.rows)
        return rows.assign(accuracy=rows[CORRECT] / rows["samples"]) if CORRECT in rows else rows
