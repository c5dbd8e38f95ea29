import subprocess
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def float32_by_default():
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="session")
def real_data(tmp_path_factory) -> Path:
    """The folder with the real data sets, unpacked once; skips where the archives are absent."""
    archives = Path(__file__).parents[2] / "shared" / "data"
    if not (archives / "unpack").is_file():
        pytest.skip("the archives of the real data sets are absent")
    folder = tmp_path_factory.getbasetemp().parent / "real-data"
    subprocess.run([archives / "unpack", folder, "cifar10", "mnist", "fashion_mnist"], check=True)
    return folder
