"""Patients like those of FLamby's TCGA-BRCA, in its two files: older ones live less long."""

import numpy as np
import pandas as pd


def write_tcga_brca(root, patients=12):
    """So many training patients and half as many test patients of each of six regions, and two of no split."""
    random = np.random.default_rng(0)
    folds = [f"{split}_{region}" for region in range(6) for split in ("train", "train", "test")] * (patients // 2)
    count = len(folds) + 2
    ages = random.integers(30, 90, count)
    table = pd.DataFrame({"pid": [f"TCGA-{number}" for number in range(count)], "age_at_index": ages})
    table["primary_diagnosis_Lobular carcinoma, NOS"] = random.integers(0, 2, count)
    table["E"] = random.random(count) < 0.5
    table["E"] = table["E"].astype(float)
    table["T"] = (100.0 * (100 - ages) + random.integers(0, 50, count)).round()
    table.sample(frac=1, random_state=1).to_csv(root / "brca.csv", index=False)
    splits = pd.DataFrame({"pid": table["pid"][: len(folds)], "fold": "-", "fold2": folds})
    splits.to_csv(root / "train_test_split.csv", index=False)
