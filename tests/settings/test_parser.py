import subprocess
import sys

import pytest
import yaml
from torch import nn

from pfl_lightning.cli import main
from pfl_lightning.errors import SettingsError
from pfl_lightning.settings.parser import CheckpointParser, SettingsParser

FOREIGN = """
from jsonargparse import get_loader
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel


class Cli(LightningCLI):
    def add_arguments_to_parser(self, parser):
        parser.add_argument("--wanted", type=int)
        parser.add_argument("--anything", type=object)


def behaviour():
    words = ["--anything={class_path: datetime.timedelta, init_args: {days: 2}}", "--trainer.logger=false"]
    cli = Cli(BoringModel, BoringDataModule, run=False, args=words)
    made = cli.parser.instantiate(cli.config)
    loaded = get_loader("yaml")("{a: 1, a: 2}")
    return cli.config.wanted, repr(made.anything), loaded, cli.parser.parse_string("wanted: null").wanted


before = behaviour()
"""
OURS = """
import pfl_lightning.cli.fit
from pfl_lightning import Experiment
from pfl_lightning.data import Digits
from pfl_lightning.methods import FedAvg

settings = Experiment(FedAvg(), Digits()).settings
experiment = Experiment.from_settings("quickstart")
"""


@pytest.mark.slow
def test_a_foreign_parser_in_the_same_process_is_as_it_was():
    """Before and after ours have parsed; the foreign one takes null for a number, and makes what it may make."""
    program = f"{FOREIGN}{OURS}after = behaviour()\nassert before == after, (before, after)\nprint(before)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("(None, 'datetime.timedelta(days=2)', {'a': 2}, None)"), done.stdout


@pytest.mark.parametrize("kind", [SettingsParser, CheckpointParser])
def test_a_class_as_such_is_a_torch_module_or_ours_because_who_takes_it_will_call_it(kind):
    parser = kind()
    parser.add_argument("--kind", type=type)
    assert parser.parse_object({"kind": "torch.nn.Linear"}).kind is nn.Linear
    for path in ("sympy.core.function.Lambda", "collections.Counter"):
        with pytest.raises(SettingsError, match=f"kind: {path} is not possible"):
            parser.parse_object({"kind": path})


@pytest.mark.slow
def test_a_class_inside_of_a_method_takes_no_option_of_the_class_before_it(capsys, tmp_path):
    (tmp_path / "own.yaml").write_text("model:\n  class_path: FedRep\n  init_args:\n    network: ConvNet\n")
    for words in (
        ["--model.network=ConvNet"],
        [f"--config={tmp_path}/own.yaml"],
        ["--config=papers/fedmac/mnist", "--model.network=ConvNet"],
        ["--model.network=MLP", "--model.network.hidden=[7]", f"--config={tmp_path}/own.yaml"],
        ["--model=FedAvg", "--model.network=MLP", f"--config={tmp_path}/own.yaml"],
    ):
        with pytest.raises(SystemExit):
            main(["fit", *words, "--print_config"])
        network = yaml.safe_load(capsys.readouterr().out)["model"]["init_args"]["network"]
        assert network == {
            "class_path": "pfl_lightning.models.ConvNet",
            "init_args": {"channels": [32, 64], "hidden": []},
        }, words


@pytest.mark.slow
def test_a_method_takes_over_the_options_of_the_one_before_it(capsys):
    with pytest.raises(SystemExit):
        main(["fit", "--config=papers/fedmac/mnist", "--model=Ditto", "--print_config"])
    options = yaml.safe_load(capsys.readouterr().out)["model"]["init_args"]
    assert options["network"]["init_args"]["hidden"] == [100]
    assert options["local"]["batch_size"] == 20
