import csv

import pytest
import yaml

from pfl_lightning import methods
from pfl_lightning.methods import Method
from pfl_lightning.report.run_files import LABEL, Label
from pfl_lightning.settings import class_name


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
        quantity="accuracy",
        trainer=None,
    ):
        folder = tmp_path / name
        folder.mkdir()
        evaluations = len(next(iter(scores.values())))
        compute = compute or [5.0 * index for index in range(evaluations)]
        settings = {
            "seed_everything": seed,
            "model": {"class_path": f"pfl_lightning.methods.{method}", "init_args": {"lr": 0.1, **(model or {})}},
            "data": {"class_path": "Digits", "init_args": {"num_clients": 20, "participation": None, **(data or {})}},
            "trainer": {"max_steps": 30, "callbacks": list(callbacks), **(trainer or {})},
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(settings))
        kind, doubling = (
            getattr(methods, method, type(method, (Method,), {})),
            (*(class_name(each["class_path"]) for each in callbacks), None)[0],
        )
        label = Label(
            kind.display_name,
            kind.doubled_name if doubling else kind.display_name,
            doubling,
            dict(kind.suffixes),
            method == "FedAvg" or settings["model"]["init_args"].get("conformity") == 1,
        )
        (folder / LABEL).write_text(yaml.safe_dump(label._asdict()))
        tags = {model: f"test/{model}/{quantity}/mean" for model in scores}
        with (folder / "metrics.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["round", "time/compute", "time/total", "train/loss", *tags.values()])
            writer.writeheader()
            for index in range(evaluations):
                means = {tags[model]: sum(values[index]) / len(values[index]) for model, values in scores.items()}
                row = {"round": 10 * index, "time/compute": compute[index], "time/total": 1e9}
                writer.writerow({**row, **means})
                writer.writerow({**row, "round": 10 * index + 5, "train/loss": 1.0})  # a round without evaluation
        with (folder / "clients.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["round", "split", "model", "client", "samples", "correct", "loss"])
            for split in ("val", "test"):
                for model, values in scores.items():
                    for index in range(evaluations):
                        for client, score in reversed(list(enumerate(values[index]))):
                            correct = 0 if split == "val" or quantity == "loss" else round(score * 100)
                            writer.writerow([10 * index, split, model, client, 100, correct, score])
        return folder

    return write


@pytest.fixture
def evaluate():
    """Adds losses of clients on another split to a run folder, ``[evaluations][clients]``, at every tenth round."""

    def add(folder, split, losses, model="global", samples=None, first=0):
        with (folder / "clients.csv").open("a", newline="") as file:
            for index, values in enumerate(losses):
                for client, (loss, size) in enumerate(zip(values, samples or [10] * len(values), strict=True), first):
                    csv.writer(file).writerow([10 * index, split, model, client, size, 0, loss])
        return folder

    return add


@pytest.fixture
def log():
    """Logs a scalar in a run folder, by round."""

    def add(folder, tag, values):
        with (folder / "metrics.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        rounds = sorted({int(row["round"]) for row in rows} | values.keys())
        known = {int(row["round"]): row for row in rows}
        with (folder / "metrics.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0], tag])
            writer.writeheader()
            writer.writerows({**known.get(last, {"round": last}), tag: values.get(last, "")} for last in rounds)
        return folder

    return add


@pytest.fixture
def doubling():
    """The callback of SRPFL, as ``config.yaml`` has it."""
    return {"class_path": "pfl_lightning.callbacks.StageDoubling", "init_args": {"n0": 5, "rounds_per_stage": 5}}
