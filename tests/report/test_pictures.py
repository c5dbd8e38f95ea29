import pytest
from fakes.curves import curves
from matplotlib.figure import Figure
from rich.markdown import Markdown

from pfl_lightning.report.pictures import caption_of, latex, write_pictures


@pytest.fixture
def folders(write_run):
    """FedRep with two seeds."""
    trainer = {"val_check_interval": 10}
    return [write_run(str(seed), {"stored": [[0.1], [0.6]]}, seed=seed, trainer=trainer) for seed in (1, 2)]


def test_a_caption_says_over_what_means_are_taken_and_what_time_is(folders):
    assert caption_of("accuracy_time", curves(*folders), [0, 10]) == (
        "Test accuracy as the mean over the clients on Digits with 20 clients, against simulated time. A round takes "
        "as long as its slowest participant computes, plus 0 and 10 s of communication, from left to right. Lines are "
        "means over 2 seeds; bands are ± one sample standard deviation over the seeds. Evaluations are 10 rounds apart."
    )


def test_a_single_seed_has_no_band(folders):
    for name in ("accuracy_time", "accuracy_bits", "tail"):
        caption = caption_of(name, curves(folders[0]))
        assert "one seed" in caption
        assert "standard deviation" not in caption


def test_methods_without_a_server_wait_for_their_neighbours(write_run):
    run = write_run("ring", {"stored": [[0.5]]}, "DPSGD", model={"topology": "Ring"})
    assert "clients wait for their neighbours alone" in caption_of("accuracy_time", curves(run))


def test_a_run_in_which_nobody_waits_has_a_time_of_its_own(write_run):
    run = write_run("buff", {"stored": [[0.5]]}, data={"participation": {"class_path": "Asynchronous"}})
    assert "where nobody waits, an update comes with its last" in caption_of("accuracy_time", curves(run))


def test_a_caption_can_be_pasted_into_latex():
    code = latex("tail", r"50 % ± 1 of a_b & c, ~/x^2 {\}")
    assert r"\includegraphics[width=\linewidth]{tail}" in code
    assert r"\caption{50 \% $\pm$ 1 of a\_b \& c, \textasciitilde{}/x\textasciicircum{}2 \{\textbackslash{}\}}" in code


def test_a_name_in_a_caption_is_shown_and_not_obeyed(tmp_path):
    name = "<script>x</script> ![a](http://x/a.png)\n\n```\n# b"
    write_pictures(iter([("tail", Figure(), name)]), ["svg"], tmp_path)
    tokens = Markdown((tmp_path / "figures.md").read_text()).parsed
    kinds = [token.type for token in tokens] + [each.type for token in tokens for each in token.children or ()]
    assert (kinds.count("image"), kinds.count("fence"), kinds.count("heading_open")) == (1, 1, 2)
    assert not {"html_inline", "html_block"} & {*kinds}
