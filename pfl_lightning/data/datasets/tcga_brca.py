from pfl_lightning.data.datasets.official_data import OfficialData
from pfl_lightning.data.own.raw_data import RawData
from pfl_lightning.data.reading import find_folder, reading

PATIENTS, SPLITS = "brca.csv", "train_test_split.csv"
SOURCE = "https://github.com/owkin/FLamby/tree/main/flamby/datasets/fed_tcga_brca"
REMEDY = f"put {PATIENTS} and {SPLITS} there, which are below {SOURCE}"
PATIENT, SPLIT, EVENT, TIME = "pid", "fold2", "E", "T"


class TCGABRCA(OfficialData):
    """TCGA-BRCA: how long patients with breast cancer live, FLamby's Fed-TCGA-BRCA.

    The files are FLamby's ``brca.csv`` and ``train_test_split.csv``. An input are 39 numbers of a patient, the age and
    38 indicators; the target is whether the patient died (event) and after how many days, or was last seen alive then.
    Each of the six regions that the hospitals lie in is a client. The splits are FLamby's: 866 patients for training
    and 222 for testing; 8 patients of the first file are in neither. The features are standardised over all training
    patients.

    Paper: Ogier du Terrail et al., "FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning in Realistic
    Healthcare Settings", NeurIPS 2022, arXiv:2210.04620.

    Differs: FLamby does not standardise the features.
    """

    def read(self) -> list[RawData]:
        """Read both files, and join them by patient.

        Raises:
            PflError: If one is missing or cannot be read, or a patient of a split is in none of the lines.
        """
        import pandas as pd  # which takes half a second

        self.target_type = "survival"
        folder = find_folder(self.root, "fed_tcga_brca", PATIENTS, REMEDY)
        with reading(folder / SPLITS, REMEDY):
            splits = pd.read_csv(folder / SPLITS, usecols=[PATIENT, SPLIT])
            parts = splits[SPLIT].str.extract(r"^(train|test)_(\d)$")
            if wrong := [*splits[SPLIT][parts[0].isna()]]:
                raise ValueError(f"{SPLIT} must be train_0 to test_5, got {wrong[0]}")
        with reading(folder / PATIENTS, REMEDY):
            table = pd.read_csv(folder / PATIENTS)
            if missing := {PATIENT, EVENT, TIME} - {*table}:
                raise ValueError(f"no column '{min(missing)}'")
            joined = splits.merge(table, on=PATIENT, how="left", validate="one_to_one")
            if unknown := [*joined[PATIENT][joined[TIME].isna()]]:
                raise ValueError(f"no time of patient {unknown[0]}, who is in {SPLITS}")
            features = joined.drop(columns=[PATIENT, SPLIT, EVENT, TIME]).to_numpy(float)
        notes = {"splits": f"{SPLITS}; {len(table) - len(joined)} patients are in none"}
        targets = joined[[EVENT, TIME]].to_numpy(float)
        regions = ("region " + parts[1]).to_numpy(str)
        members = [(parts[0] == split).to_numpy() for split in ("train", "test")]
        return [RawData(features[part], targets[part], regions[part], (), "NF", notes) for part in members]
