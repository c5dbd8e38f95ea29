import pytest
import yaml

from pfl_lightning.cli import main
from pfl_lightning.cli.planning import Settings
from pfl_lightning.cli.short_help import GROUPS, options_of, short_help
from pfl_lightning.settings import class_name, flat

OPTIONS = [option for options in GROUPS.values() for option in options]


@pytest.fixture(scope="module")
def defaults():
    """The options of the parser, and every setting of a run with a callback that has options."""
    words = ["--trainer.callbacks+=StageDoubling", "--data.participation.class_path=Participation"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["pfl"])
        settings = Settings(words, run=False)
        return settings.parser.options(), dict(flat(settings.plain()))


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_every_option_exists_and_has_the_default_that_the_help_says(option, defaults):
    options, settings = defaults
    known = {f"--{key}" for key in settings} | {*options, "--trainer.callbacks.n0", "--ckpt_path"}
    assert f"--{option.key}" in known
    if option.default:
        default = settings[option.key]
        assert yaml.safe_load(option.default) == (class_name(default) if isinstance(default, str) else default)


@pytest.mark.parametrize("command", ["fit", "validate", "test"])
def test_the_short_help_is_short(command, capsys):
    main([command, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) < 100
    assert lines[0].startswith(f"usage: pfl {command} ")
    assert lines == short_help(command).splitlines()


def test_an_evaluation_offers_no_rounds():
    assert "trainer.max_steps" in {option.key for option in options_of("fit")}
    assert "trainer.max_steps" not in {option.key for option in options_of("test")}


def test_all_options_are_a_word_away(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["fit", "--help.all"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith("usage: pfl fit [--config FILE ...]")
    assert "--trainer.reload_dataloaders_every_n_epochs" in said


def test_the_options_of_a_method_are_a_word_away(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["fit", "--model.help", "FedRep"])
    assert ended.value.code == 0
    assert "--model.head_epochs" in capsys.readouterr().out
