"""GLUE's tasks from the command line, in the layout of the hub."""

import pandas as pd
import pytest
from fakes.glue import SIZES, TASKS, write_glue

from pfl_lightning.cli import main

COLUMNS = {"F1Score": "f1"}
COLUMNS |= {f"{name}CorrCoef": f"{name.lower()}_corr_coef" for name in ("Matthews", "Pearson", "Spearman")}


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_each_task_trains_and_is_scored_on_its_validation_split(name, hugging_face, tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    task = TASKS[name]
    words = ["fit", "--model=FedAvg", "--model.network=HuggingFaceModel", f"--model.network.name={hugging_face}/bert"]
    words += ["--model.network.dropout=false", "--model.adapter=LoRA", "--data=HuggingFace"]
    words += [f"--data.root={write_glue(tmp_path, name)}", f"--data.input=[{','.join(task.texts)}]"]
    words += [f"--data.test_split={task.validation}", f"--data.tokenizer={hugging_face}/bert", "--data.max_length=6"]
    words += ["--data.num_clients=2", "--data.partition=IID", "--trainer.max_steps=1"]
    for metric in task.metrics:
        words += ["--trainer.callbacks+=ClientMetrics", f"--trainer.callbacks.metric={metric}"]
    main(words)
    clients = pd.read_csv(tmp_path / "runs/FedAvg-HuggingFace/version_0/clients.csv")
    scored = clients.query("round == 1 and split == 'test' and model == 'global'")
    assert scored.samples.sum() == SIZES["validation"]
    columns = [COLUMNS[metric.rpartition(".")[2].removeprefix("Binary")] for metric in task.metrics]
    assert scored[[*columns, "correct" if task.classes else "rmse"]].notna().all(axis=None)
