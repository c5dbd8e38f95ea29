import lightning.pytorch as pl
import pytest
from jsonargparse import Namespace

from pfl_lightning.callbacks import GradientDoubling, StageDoubling
from pfl_lightning.callbacks.labels import label_of, run_name
from pfl_lightning.methods import DeltaFL, FedAvg
from pfl_lightning.report.run_files import Label
from pfl_lightning.score_kind import ACCURACY


class Own(FedAvg):
    """A method of the user's own."""


class Growing(StageDoubling):
    """A rule of the user's own."""


METHODS, CALLBACKS = "pfl_lightning.methods", "pfl_lightning.callbacks"


@pytest.mark.parametrize(
    ("method", "callbacks", "name"),
    [
        (f"{METHODS}.FedRep", None, "FedRep-Digits"),
        (f"{METHODS}.FedRep", {"class_path": f"{CALLBACKS}.StageDoubling"}, "FedRep-SRPFL-Digits"),
        (f"{METHODS}.LGFedAvg", [{"class_path": f"{CALLBACKS}.OracleDoubling"}], "LG-SRPFL-Digits"),
        (f"{METHODS}.PFedMe", [{"class_path": f"{__name__}.Growing"}], "pFedMe+doubling-Digits"),
        (f"{__name__}.Own", [{"class_path": f"{CALLBACKS}.CosineMaps"}], "Own-Digits"),
    ],
)
def test_a_run_is_named_by_its_method_as_in_papers_and_its_data(method, callbacks, name):
    parts = {"model": {"class_path": method}, "data": {"class_path": "some.Digits"}}
    parts["trainer"] = {"callbacks": callbacks}
    assert run_name(parts) == name
    assert run_name(Namespace(**{key: Namespace(**part) for key, part in parts.items()})) == name


@pytest.mark.parametrize(
    ("make", "callbacks", "label"),
    [
        (FedAvg, [], ("FedAvg", "FedAvg", None, {"finetuned": "-FT", "global": ""}, True)),
        (Own, [Growing(n0=2)], ("Own", "Own + doubling", "Growing", {}, False)),
        (DeltaFL, [GradientDoubling()], ("Delta-FL", "Delta-FL + doubling", "GradientDoubling", {}, False)),
        (lambda: DeltaFL(conformity=1.0), [], ("Delta-FL", "Delta-FL", None, {}, True)),
    ],
)
def test_a_method_says_how_reports_name_its_runs(make, callbacks, label):
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, callbacks=callbacks)
    trainer.strategy.connect(make())
    assert label_of(trainer) == Label(*label, ACCURACY)
