"""The accuracies in % that the paper prints, by data set and concentration of the Dirichlet draws: ``paper.yaml``."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

Numbers = Mapping[str, Mapping[float, Sequence[float]]]

PRINTED = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
TABLE1: Numbers = PRINTED["table1"]
TABLE2: Numbers = PRINTED["table2"]
TABLE7: Numbers = PRINTED["table7"]
TABLE8: Numbers = PRINTED["table8"]
TABLE9: Mapping[str, Mapping[str, Sequence[Sequence[float]]]] = PRINTED["table9"]
