from itertools import product

import pandas as pd
import pytest
import yaml

from pfl_lightning import methods
from pfl_lightning.methods import Method
from pfl_lightning.report.run_files import CLIENTS, CONFIG, EVALUATION, LABEL, METRICS, Label
from pfl_lightning.settings.values import class_name

COLUMNS = [*EVALUATION, "client", "samples", "correct", "loss"]


@pytest.fixture
def write_run(tmp_path):
    """Writes a run folder with the scores of clients, ``[evaluations][clients]``, at every tenth round."""

    def write(
        name,
        scores,
        method="FedRep",
        compute=None,
        seed=1,
        callbacks=(),
        model=None,
        data=None,
        score_name="accuracy",
        trainer=None,
        **label_of,
    ):
        folder = tmp_path / name
        folder.mkdir()
        settings = {
            "seed_everything": seed,
            "model": {
                "class_path": f"pfl_lightning.methods.{method}",
                "init_args": {"local": {"lr": 0.1}, **(model or {})},
            },
            "data": {"class_path": "Digits", "init_args": {"num_clients": 20, "participation": None, **(data or {})}},
            "trainer": {"max_steps": 30, "callbacks": list(callbacks), **(trainer or {})},
        }
        (folder / CONFIG).write_text(yaml.safe_dump(settings))
        kind = getattr(methods, method, None) or type(method, (Method,), {})
        doubling = next((class_name(each["class_path"]) for each in callbacks), None)
        shown = kind.doubled_name if doubling else kind.display_name
        is_baseline = method == "FedAvg" or settings["model"]["init_args"].get("conformity") == 1
        label = Label(kind.display_name, shown, doubling, dict(kind.suffixes), is_baseline, **label_of)
        (folder / LABEL).write_text(yaml.safe_dump(label._asdict()))

        rounds = [10 * index for index in range(len(next(iter(scores.values()))))]
        evaluated = pd.DataFrame({"round": rounds, "time/compute": compute or [n / 2 for n in rounds]})
        between = evaluated.assign(**{"round": evaluated["round"] + 5, "train/loss": 1.0})  # rounds without evaluation
        for kept, values in scores.items():
            evaluated[f"test/{kept}/{score_name}/mean"] = [sum(each) / len(each) for each in values]
        pd.concat([evaluated, between]).sort_values("round").to_csv(folder / METRICS, index=False)
        rows = [
            (split, kept, at, client, 100, (split == "test" and score_name == "accuracy") * round(score * 100), score)
            for split, (kept, values) in product(("val", "test"), scores.items())
            for at, each in zip(rounds, values, strict=True)
            for client, score in reversed(list(enumerate(each)))
        ]
        pd.DataFrame(rows, columns=COLUMNS).to_csv(folder / CLIENTS, index=False)
        return folder

    return write


@pytest.fixture
def evaluate():
    """Adds losses of clients on another split to a run folder, ``[evaluations][clients]``, at every tenth round."""

    def add(folder, split, losses, model="global", samples=None, first=0):
        rows = [
            (split, model, 10 * index, client, size, 0, loss)
            for index, values in enumerate(losses)
            for client, (loss, size) in enumerate(zip(values, samples or [10] * len(values), strict=True), first)
        ]
        pd.DataFrame(rows).to_csv(folder / CLIENTS, mode="a", header=False, index=False)
        return folder

    return add


@pytest.fixture
def log():
    """Logs a scalar in a run folder, by round."""

    def add(folder, tag, values):
        table = pd.read_csv(folder / METRICS, dtype=str).astype({"round": int}).set_index("round")
        table = table.reindex(table.index.union(list(values)))
        table[tag] = pd.Series(values)
        table.to_csv(folder / METRICS)
        return folder

    return add


@pytest.fixture
def doubling():
    """The callback of SRPFL, as ``config.yaml`` has it."""
    return {"class_path": "pfl_lightning.callbacks.StageDoubling", "init_args": {"n0": 5, "rounds_per_stage": 5}}
