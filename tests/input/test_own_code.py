"""Errors in a user's own file are shown as such, in one line; a class that is none for its place says what it is."""

from pathlib import Path

import pytest

from pfl_lightning.cli import main
from pfl_lightning.settings.messages import blame

HEAD = "from pfl_lightning.methods import FedAvg\n\n"
METHOD = "class Mine(FedAvg):\n    '''Mine.'''\n\n"
KEEPS = f"""{HEAD}import torch
{METHOD}
    def initial_state(self, tensors, num_clients, seed):
        return {{"seen": torch.zeros(num_clients, 3)}}
"""
FUNCTION = "def function():\n    pass\n\n\nNUMBER = 3\n"
FILES = {
    "lacks": f"{HEAD}import nonexistent\n\n{METHOD}",
    "typo": f"{HEAD}{METHOD}    def local_update(self, cohort, received, key)\n        return 1\n",
    "divides": f"{HEAD}RATE = 1 / 0\n\n{METHOD}",
    "outer": "from lacks import Mine\n",
    "attribute": f"{HEAD}FedAvg.absent\n",
    "renamed": "from pfl_lightning.methods import FedAverage\n",
    "init": f"{HEAD}{METHOD}    def __init__(self, **options):\n        raise KeyError('rate')\n",
    "bare": f"{HEAD}{METHOD}    def __init__(self, rho: float = 1.0):\n        self.rho = rho\n",
    "half": f"{HEAD}{METHOD}    def local_update(self, *given):\n        return super().local_update(*given)[0]\n",
    "mean": f"{HEAD}{METHOD}    def local_update(self, cohort, received, key):\n        return received, 0.5\n",
    "forgets": f"{KEEPS}\n    def local_update(self, *given):\n        trained, losses = super().local_update(*given)\n"
    "        return trained.without(['seen']), losses\n",
    "narrows": f"{KEEPS}\n    def local_update(self, *given):\n        trained, losses = super().local_update(*given)\n"
    "        return trained.with_own({'seen': losses}), losses\n",
    "flat": KEEPS.replace("num_clients, 3", "3"),
    "arrays": KEEPS.replace("torch.zeros(num_clients, 3)", "[0.0] * num_clients"),
    "trains": f"{HEAD}{METHOD}    def local_update(self, *_):\n        raise RuntimeError('no luck')\n",
    "library": f"{HEAD}import torch\n{METHOD}    def local_update(self, *_):\n        torch.ones(2) @ torch.ones(3)\n",
    "good": f"{HEAD}from torch import nn\n\n{METHOD}\nclass Net(nn.Module):\n    pass\n\n\n{FUNCTION}",
    "named": f"{HEAD}{METHOD}".replace("Mine", "FedBM"),
    "below/deep": f"{HEAD}{METHOD}",
    "not-a-name/far": f"{HEAD}{METHOD}",
}
LACKS = "lacks.py, line 3: "
TYPO = "typo.py, line 6: SyntaxError: "
DIVIDES = "divides.py, line 3: ZeroDivisionError: "
MORE = " (PFL_DEBUG=1 shows the traceback)"


@pytest.fixture(autouse=True)
def beside_the_files(in_an_empty_folder):
    for name, text in FILES.items():
        path = Path(f"{name}.py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


@pytest.fixture
def not_run(refused):
    """Exit code and line of a run that ends with an error."""
    return lambda *words: refused("fit", "--trainer.fast_dev_run=true", "--data.num_clients=4", *words)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--model=lacks.Mine", LACKS),
        ("--model=typo.Mine", TYPO),
        ("--model=divides.Mine", DIVIDES),
        ("--model=outer.Mine", LACKS),
        ("--model=attribute.Mine", "attribute.py, line 3: AttributeError: "),
        ("--model=renamed.Mine", "renamed.py, line 1: "),
        ("--data=lacks.Mine", LACKS),
        ("--data.partition=typo.Mine", TYPO),
        ("--model.network=lacks.Mine", LACKS),
        ("--model.server_optimizer=lacks.Mine", LACKS),
        ("--trainer.callbacks+=typo.Mine", TYPO),
        ("--trainer.logger=divides.Mine", DIVIDES),
        # in a settings file
        ("model: {class_path: lacks.Mine}", LACKS),
        ("model: {class_path: typo.Mine}", TYPO),
        ("trainer: {callbacks: [{class_path: divides.Mine, init_args: {a: 1}}]}", DIVIDES),
        ("data: {class_path: Digits, init_args: {partition: {class_path: divides.Mine}}}", DIVIDES),
    ],
)
def test_a_file_that_cannot_be_imported_is_named_with_the_line(words, line, not_run):
    Path("mine.yaml").write_text(words)
    code, found = not_run(words if words.startswith("--") else "--config=mine.yaml")
    assert code == 2
    assert found.startswith(line)
    assert MORE in found


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--model=init.Mine", "init.py, line 7, in __init__: KeyError: 'rate'"),
        ("--model=trains.Mine", "trains.py, line 7, in local_update: RuntimeError: no luck"),
        ("--model=library.Mine", "library.py, line 8, in local_update: RuntimeError: "),
    ],
)
def test_an_error_of_a_users_class_names_its_line(words, line, not_run):
    code, found = not_run(words)
    assert code == 1
    assert found.startswith(line)
    assert found.endswith(MORE)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--model=bare.Mine", "model: Mine.__init__ lacks its super().__init__(**kwargs)"),
        ("--model=half.Mine", "Mine.local_update returns something else; allowed: Params, and the clients' losses as "),
        ("--model=mean.Mine", "Mine.local_update returns something else; allowed: Params, and the clients' losses as "),
        ("--model=forgets.Mine", "Mine.local_update returns nothing as seen; allowed: a tensor [4, 3], as received"),
        ("--model=narrows.Mine", "Mine.local_update returns [4] as seen; allowed: a tensor [4, 3], as received"),
        ("--model=flat.Mine", "initial_state: seen is a tensor [3]; allowed: a tensor [4, ...], a row a client"),
        ("--model=arrays.Mine", "initial_state: seen is a list; allowed: a tensor [4, ...], a row a client"),
    ],
)
def test_a_method_that_leaves_out_what_the_base_needs_is_named(words, line, not_run):
    assert not_run(words)[1].startswith(line)


@pytest.mark.parametrize(("words", "kind"), [("lacks", ImportError), ("typo", SyntaxError), ("trains", RuntimeError)])
def test_the_traceback_is_there_on_request(words, kind, monkeypatch):
    monkeypatch.setenv("PFL_DEBUG", "1")
    with pytest.raises(Exception) as raised:  # noqa: PT011 (the parser may wrap it)
        main(["fit", f"--model={words}.Mine", "--trainer.fast_dev_run=true"])
    error = raised.value
    while not isinstance(error, kind):
        error = error.__cause__
    assert f"{words}.py" in blame(error)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--model=good.Net", "good.Net is not possible: "),
        ("--model=good.function", "good.function is not possible: "),
        ("--model=good.NUMBER", "good.NUMBER is not possible: "),
        ("--model=good.Nein", "good.Nein is not possible: "),
        ("--model=good", "good is not possible; did you mean good.Mine?"),
        ("--model=good.py", "good.py is not possible; did you mean good.Mine?"),
        ("--model=Mine", "Mine is not possible; did you mean good.Mine?"),
        ("--model=FedBM", "FedBM is not possible; did you mean named.FedBM?"),  # and not FedBN
        ("--model=below/deep.py", "below/deep.py is not possible"),
        ("--model=absent.Mine", "absent.Mine is not possible: "),
        ("--model.network=good.py", "good.py is not possible; did you mean good.Net?"),
        ("--data=good.Mine", "good.Mine is not possible: "),
        ("--trainer.callbacks+=good.Net", "good.Net is not possible: "),
    ],
)
def test_what_is_no_class_for_its_place_is_named_with_one_that_is_meant(words, said, not_run):
    if words == "--model=Mine":
        for name in {*FILES} - {"good"}:
            Path(f"{name}.py").unlink()
    code, found = not_run(words)
    assert code == 2
    key = words.removeprefix("--").partition("=")[0].removesuffix("+")
    assert found.startswith(f"{key}: {said}")
    assert "; allowed: " in found


def test_a_program_beside_the_run_is_not_run_because_an_option_has_its_name(not_run):
    Path("mnist.py").write_text("open('called', 'w').close()\n")
    assert not_run("--data=mnist")[0] == 2
    assert not Path("called").exists()
