from pfl_lightning.errors import PflError, cause_of, causes, one_line
from pfl_lightning.settings.messages import blame


def test_colours_of_a_terminal_are_left_out_of_a_line():
    assert one_line(ValueError("\x1b[1mdo not\x1b[0m\n  open it")) == "do not open it"


def test_causes_in_a_circle_end():
    """As when a logger's file on a full disk fails again while it is closed."""
    first, second = OSError("no space"), ValueError("closed")
    first.__context__, second.__context__ = second, first
    assert list(causes(first)) == [first, second]
    assert cause_of(first) is None
    assert blame(first) == ""


def test_the_cause_that_a_user_can_fix_is_found_in_the_chain():
    wrapped = RuntimeError("in a library")
    wrapped.__cause__ = PflError("model.local.lr must be positive")
    assert cause_of(wrapped) is wrapped.__cause__
