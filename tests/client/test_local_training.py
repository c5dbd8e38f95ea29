import pytest

from pfl_lightning.client import LocalTraining
from pfl_lightning.errors import PflError

KEY = "model.local.clients"


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "own.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
        return "own.csv"

    return write


def test_a_file_and_a_mapping_say_the_same(table):
    rows = {"b, north": {"epochs": 3, "lr": 0.5}, "a": {"batch_size": 2, "epoch_steps": 1}}
    file = table('\ufefflr,client,epochs,epoch_steps,batch_size\r\n0.5,"b, north",3,,\n,a, ,1,2\n')
    usual = LocalTraining(momentum=0.5, epochs=7)
    for clients in (file, rows):
        own = LocalTraining(momentum=0.5, epochs=7, clients=clients).of_clients(["a", "c", "b, north"], 3)
        assert own == {
            2: LocalTraining(momentum=0.5, epochs=3, lr=0.5),
            0: LocalTraining(momentum=0.5, epochs=7, batch_size=2, epoch_steps=1),
        }
    assert usual.of_clients(["a"], 1) == {}


def test_clients_without_names_are_numbers():
    training = LocalTraining(clients={3: {"lr": 0.5}, "0": {"lr": 0.25}})
    assert {client: own.lr for client, own in training.of_clients([], 4).items()} == {3: 0.5, 0: 0.25}


@pytest.mark.parametrize(
    ("clients", "line"),
    [
        ({"4": {"lr": 1}}, "4 is no client; allowed: 0 to 3"),
        ({"-1": {"lr": 1}}, "-1 is no client"),
        ({"0": {"rate": 1}}, "rate is not possible; allowed: epochs, epoch_steps, batch_size, lr"),
        ({"0": {"epoch": 1}}, "epoch is not possible; did you mean epochs?"),
        ({"0": {"epochs": 1.5}}, "epochs of 0 must be a whole number > 0 and <= 1000000000, got 1.5"),
        ({"0": {"epochs": 0}}, "epochs of 0 must be a whole number > 0"),
        ({"0": {"lr": float("nan")}}, "lr of 0 must be a number > 0"),
        ("client,lr\n0,fast\n", "lr of 0 must be a number > 0 and <= 1e+09, got fast"),
        ("client,lr\n0,0.1,2\n", "line 2 of 'own.csv' must have 2 fields, got 3"),
        ("client,lr\n0\n", "line 2 of 'own.csv' must have 2 fields, got 1"),
        ("client,lr\n0,1\n1,1\n0,1\n", "'own.csv' must have each client once, got 0 again in line 4"),
        ("ward,lr\n0,1\n", "'own.csv' must have a column client, and each once, got ward, lr"),
        ("client,lr,lr\n0,1,2\n", "'own.csv' must have a column client, and each once, got client, lr, lr"),
        ("", "'own.csv' must have a column client, and each once, got none"),
        (b"client,lr\n\xff,1\n", "'own.csv' cannot be read ("),
        ('client,lr\n"0,1\n', "'own.csv' cannot be read ("),
    ],
)
def test_what_is_no_number_of_a_client_is_one_line(clients, line, table):
    training = LocalTraining(clients=clients if isinstance(clients, dict) else table(clients))
    with pytest.raises(PflError) as error:
        training.of_clients([], 4)
    assert str(error.value).startswith(f"{KEY}: {line}")


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(PflError, match=r"'no\.csv' cannot be read \(No such file or directory\)"):
        LocalTraining(clients="no.csv").of_clients([], 4)
