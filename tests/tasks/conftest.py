import pytest
import torch


@pytest.fixture(autouse=True)
def repeatable_float64(float32_by_default):
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
