"""GLUE as its repository on the hub has it: a folder of Parquet files for each task, with hidden test labels."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

WORDS = ["a", "good", "bad", "film", "very"]


class GlueTask(NamedTuple):
    """One of the tasks.

    Attributes:
        texts: Names of its columns of texts.
        classes: Names of its classes; none for numbers from 0 to 5.
        metrics: What it is scored by beside what all tasks of its kind have.
        validation: Name of the split that is scored.
    """

    texts: list[str]
    classes: list[str]
    metrics: list[str]
    validation: str = "validation"


PAIR = ["sentence1", "sentence2"]
ENTAILMENT = ["entailment", "not_entailment"]
F1 = ["torchmetrics.classification.BinaryF1Score"]
CORRELATIONS = ["torchmetrics.PearsonCorrCoef", "torchmetrics.SpearmanCorrCoef"]
MATTHEWS = ["torchmetrics.classification.BinaryMatthewsCorrCoef"]
TASKS = {
    "cola": GlueTask(["sentence"], ["unacceptable", "acceptable"], MATTHEWS),
    "sst2": GlueTask(["sentence"], ["negative", "positive"], []),
    "mrpc": GlueTask(PAIR, ["not_equivalent", "equivalent"], F1),
    "stsb": GlueTask(PAIR, [], CORRELATIONS),
    "qqp": GlueTask(["question1", "question2"], ["not_duplicate", "duplicate"], F1),
    "mnli": GlueTask(["premise", "hypothesis"], ["entailment", "neutral", "contradiction"], [], "validation_matched"),
    "qnli": GlueTask(["question", "sentence"], ENTAILMENT, []),
    "rte": GlueTask(PAIR, ENTAILMENT, []),
}
SIZES = {"train": 48, "validation": 24, "test": 8}


def write_glue(root: Path, name: str) -> Path:
    """Write the folder of a task."""
    from datasets import ClassLabel, Dataset, Features, Value

    texts, classes, *_ = TASKS[name]
    random = np.random.default_rng(0)
    folder = root / name
    folder.mkdir()
    target = ClassLabel(names=classes) if classes else Value("float32")
    features = Features({**dict.fromkeys(texts, Value("string")), "label": target, "idx": Value("int32")})
    splits = [f"{split}{end}" for split in ("validation", "test") for end in ("_matched", "_mismatched")]
    for split in ["train", *(splits if name == "mnli" else ("validation", "test"))]:
        size = SIZES[split.split("_")[0]]
        labels = random.integers(len(classes), size=size) if classes else random.integers(26, size=size) / 5
        columns = {text: [" ".join(words) for words in random.choice(WORDS, (size, 3))] for text in texts}
        columns |= {"label": [-1] * size if split.startswith("test") else labels, "idx": np.arange(size)}
        Dataset.from_dict(columns, features).to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return folder
