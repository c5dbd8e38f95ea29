from types import SimpleNamespace

import pytest
import torch
from fakes.panels import passed
from reproduction.deprl import figures
from reproduction.deprl.figures import Maps

DATA = torch.tensor([[1.0, 0.9, 0.1], [0.9, 1.0, 0.2], [0.1, 0.2, 1.0]])
EQUAL = torch.ones(3, 3)


# the smallest cosine of two bodies is 1 - apart, and (c + 1) / 2 is 1 - apart / 2
@pytest.mark.parametrize(
    ("heads", "apart", "expected"),
    [(DATA, 0.019, [True, True]), (1 - DATA, 0.019, [False, True]), (DATA, 0.021, [True, False])],
)
def test_heads_have_to_follow_the_data_and_bodies_to_be_alike(heads, apart, expected):
    bodies = EQUAL - apart * torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert passed(figures.alike(0.1, [Maps(DATA, heads, bodies)] * 2)) == expected


def test_the_maps_of_a_run_are_of_its_class_counts_heads_and_bodies(monkeypatch, tmp_path):
    rows = {"head": torch.tensor([[1.0, 0.0], [0.0, 2.0]]), "body": torch.tensor([[1.0, 1.0], [1.0, 0.0]])}
    method = SimpleNamespace(
        parts={"head": {"head"}, "body": {"body", "statistic"}},
        engine=SimpleNamespace(trainable={"head", "body"}),
        clients=SimpleNamespace(inner_products=lambda names: rows[names[0]] @ rows[names[0]].T),
    )
    monkeypatch.setattr(figures, "load_method", lambda path: method)
    found = figures.maps(tmp_path, torch.tensor([[3, 0], [4, 3]]))
    for entries, cosine in zip(found, (0.8, 0.0, 0.5**0.5), strict=True):
        torch.testing.assert_close(entries.double(), torch.tensor([[1, cosine], [cosine, 1]]).double())
