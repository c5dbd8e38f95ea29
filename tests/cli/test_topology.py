from errno import ENOENT
from os import strerror
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import yaml
from fakes.tables import read_table

from pfl_lightning.cli import main

RUN = Path("runs/D-PSGD-Digits/version_0")
FIT = ["fit", "--model=DPSGD", "--model.network=MLP", "--model.network.hidden=[8]", "--trainer.max_steps=2"]
SMALL = ["--model.eval_epochs=0", "--data.num_clients=6", "--trainer.enable_progress_bar=false"]


@pytest.fixture(autouse=True)
def in_a_folder_with_a_graph(in_an_empty_folder):
    nx.write_graphml(nx.path_graph(6), "path.graphml")


def gaps():
    gaps = [row["consensus/spectral_gap"] for row in read_table(RUN / "metrics.csv")]
    return [float(gap) for gap in gaps if gap]


@pytest.mark.slow
def test_a_random_graph_and_its_options_are_chosen_on_the_command_line(capsys):
    redrawn = ["--model.topology.edge_probability=0.5", "--model.topology.redraw_every=1"]
    main([*FIT, *SMALL, "--model.topology=ErdosRenyi", *redrawn])
    config = yaml.safe_load((RUN / "config.yaml").read_text())["model"]["init_args"]
    assert config["topology"]["class_path"].endswith("ErdosRenyi")
    assert config["topology"]["init_args"] == {"edge_probability": 0.5, "redraw_every": 1}
    assert len(set(gaps())) == 2, "another graph in every round"
    main(["fit", f"--config={RUN}/config.yaml", "--trainer.max_steps=3", "--ckpt_path=last"])
    assert len(gaps()) == 3


def test_a_graph_from_a_file_is_chosen_on_the_command_line(capsys):
    main([*FIT, *SMALL, "--model.topology=GraphFile", "--model.topology.path=path.graphml"])
    # P = I - L / 3, where the second smallest eigenvalue of a path's Laplacian L is 2 - 2 cos(pi / 6)
    assert gaps() == pytest.approx([(2 - 2 * np.cos(np.pi / 6)) / 3] * 2)


def test_describe_draws_the_graph_beside_the_partition(capsys):
    graph = ["--model.topology=GraphFile", "--model.topology.path=path.graphml", "--data.num_clients=6"]
    main(["data", "describe", "--model=DPSGD", *graph, "--figure=deep/split.svg"])
    assert {path.name for path in Path("deep").iterdir()} == {"split.svg", "split_topology.svg"}
    assert "<svg" in Path("deep/split_topology.svg").read_text()
    assert "Figure: deep/split_topology.svg" in capsys.readouterr().out


@pytest.mark.parametrize("args", [["--model=FedRep"], ["--model=DPSGD", "--data.new_clients=5"]])
def test_describe_draws_no_graph_where_nobody_mixes(args, capsys):
    main(["data", "describe", *args])
    assert {path.name for path in Path().iterdir()} == {"path.graphml", "partition.png"}


def test_describe_refuses_a_graph_that_does_not_fit_with_one_line(refused):
    _, line = refused("data", "describe", "--model=DPSGD", "--model.topology=Torus", "--data.num_clients=7")
    assert line.startswith("model.topology: Torus is not possible with 7 clients")


T = "--model.topology"


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (f"{T}=Rng", 2, f"{T[2:]}: Rng is not possible; did you mean Ring?; allowed: Complete, Erdos"),
        (
            f"{T}=ErdosRenyi {T}.edge_probability=0",
            1,
            f"{T[2:]}.edge_probability: 0.0 is not possible with 6 clients: ",
        ),
        (f"{T}=ErdosRenyi {T}.redraw_every=0", 2, f"{T[2:]}.redraw_every: 0 is not possible; allowed: "),
        (f"{T}=Torus --data.num_clients=7", 1, f"{T[2:]}: Torus is not possible with 7 clients, "),
        (f"{T}=GraphFile", 2, f"{T[2:]}.path: a value is missing; see {T}.help GraphFile"),
        (f"{T}=GraphFile {T}.path=none.txt", 1, f"{T[2:]}.path: 'none.txt' is not possible: {strerror(ENOENT)}"),
        (
            f"{T}=GraphFile {T}.path=path.graphml --data.num_clients=5",
            1,
            f"{T[2:]}.path: 'path.graphml' is not possible: 6 nodes from 0 to 5; allowed: one node per client, "
            "numbered from 0 to 4",
        ),
        ("--model.mixing=metro", 2, "model.mixing: metro is not possible; allowed: 'metropolis', 'uniform', 'given'"),
        (
            "--model.mixing=given",
            1,
            "model.mixing: given is not possible with links that have no weight; allowed: metr",
        ),
        ("--model.weighting=samples", 2, "model.weighting: DPSGD has no such option; "),
        ("--model.sparsity.prune=true", 1, "model.sparsity.prune: True is not possible with DPSGD; allowed: False"),
    ],
)
def test_a_wrong_graph_gets_one_clear_line_and_leaves_no_run(words, code, line, refused):
    actual_code, actual_line = refused(*FIT, *SMALL, *words.split())
    assert actual_line.startswith(line)
    assert actual_code == code
