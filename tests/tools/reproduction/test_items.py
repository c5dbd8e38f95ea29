"""Every table and figure: its settings are those of ``pfl fit``, and what it shows and claims is of its runs."""

import re
from pathlib import Path

import pytest
from reproduction.check import COMPUTATIONS, other_part, verify
from reproduction.items import (
    SCALES,
    Item,
    Settings,
    construct,
    expanded,
    fill,
    items_of,
    listed,
    options_of,
    papers,
    repeats,
)
from reproduction.kinds import rows_in
from reproduction.measures import SPLIT
from reproduction.results import Results
from reproduction.tables import Column, Table, rows_of

from pfl_lightning import methods
from pfl_lightning.cli.planning import with_method
from pfl_lightning.errors import PflError
from pfl_lightning.settings.values import class_name

NAMED = ("of", "left", "right", "margin", "others", "reference", "minus")
PARTS = [
    (paper, item, scale, title)
    for paper in papers()
    for item in items_of(paper)
    for scale in Item(paper, item).scales
    for title in Item(paper, item).pairs_at(scale) or [""]
]
SLOW = [pytest.param(*part, marks=pytest.mark.slow, id="-".join(part)) for part in PARTS]


def part_of(paper, item, scale, title):
    return Item(paper, item).part(title, scale, Path("files"), Path("out"))


def single_runs(part, methods=None):
    """The words of ``pfl fit`` of each run, by its name; of some methods alone, if these are given."""
    sweeps = part.sweeps(methods)
    files = {name: f"methods/{name}.yaml" for sweep in sweeps for name in sweep.methods}
    for sweep in [single for each in sweeps for single in each.singles()]:
        words = with_method([*part.place.options, *sweep.options], files[sweep.methods[0]])
        yield sweep.names[0], [*words, *(f"--{key}={value[0]}" for key, value in sweep.vary.items())]


@pytest.fixture
def settings(settings_of):
    """The settings of the first run of each method of a part, or of every run; of some methods, if these are given."""

    def of(*part, every=False, methods=None):
        runs = dict(single_runs(part_of(*part), methods))
        firsts = {}
        for name in runs:
            firsts.setdefault(name.partition(",")[0], name)
        return {name: settings_of(runs[name]) for name in (runs if every else firsts.values())}

    return of


@pytest.fixture(scope="session")
def parsed():
    """The options of each method, and of all, that were parsed before, without their numbers."""
    return set()


def new_runs(part, parsed):
    """The words of the runs that have an option, or a word of one, that their method has not had yet.

    Options of data and trainer are the same for all methods.
    """
    for name, words in single_runs(part):
        method = re.split("[/,]", name.rpartition("/")[2])[0]
        options = {re.sub(r"\d[\d.e-]*", "0", option) for word in words for option in word.split()}
        options = {("" if option.startswith(("--data", "--trainer")) else method, option) for option in options}
        if not options <= parsed:
            parsed |= options
            yield words


@pytest.mark.parametrize(("paper", "item", "scale", "title"), SLOW)
def test_every_run_has_settings_of_pfl_and_a_name_of_its_own(paper, item, scale, title, settings_of, parsed):
    part = part_of(paper, item, scale, title)
    names = [name for sweep in part.sweeps() for name in sweep.names]
    assert len(set(names)) == len(names)
    block = part.item.block
    assert names or block.choose or block.computation or block.pictures
    for run in map(settings_of, new_runs(part, parsed)):
        assert scale == "full" or run["trainer"]["max_steps"] <= 500
        assert "test_clients" in run["data"]["init_args"]


def names_in(block):
    """The names of runs that a row refers to."""
    for key, value in block.items():
        for entry in value if isinstance(value, list) else [value]:
            if isinstance(entry, dict):
                yield from names_in(entry)
            elif key in NAMED and isinstance(entry, str):
                yield from entry.removeprefix("other: ").split(" / ")


def labels_of(part):
    """The labels of the curves of a part's methods, with and without doubling."""
    runs = {name for sweep in part.sweeps() for name in sweep.methods}
    if any(sweep.folder == "by_samples" for sweep in part.sweeps()):
        return {"FedRep", "FedRep-SRPFL", "FedRep-SRPFL, double_by=samples"}
    known = {"fedavg": ["FedAvg", "FedAvg-FT"], "flanp": ["FLANP", "FLANP-FT"], "fedrep": ["FedRep"]}
    known |= {"fedrep-srpfl": ["FedRep-SRPFL"], "lg-fedavg": ["LG-FedAvg"], "lg-srpfl": ["LG-SRPFL"]}
    return {label for run in runs for label in known.get(run, [])}


@pytest.mark.parametrize("which", PARTS, ids="-".join)
def test_claims_and_tables_are_about_runs_that_there_are(which):
    part = part_of(*which)
    block = part.item.block
    verify(part.item.common, "paper")
    verify(block, "item")
    if block.computation:
        assert block.computation in COMPUTATIONS
        return
    search = part_of(part.item.paper, block.choose["item"], *which[2:]) if block.choose else None
    chosen = dict.fromkeys(method for sweep in search.sweeps() for method in sweep.methods) if search else {}
    part.variables["chosen"].update(chosen)
    runs = {name: [] for sweep in part.sweeps() for name in sweep.names} | {name: [] for name in chosen}
    results = Results(part, runs)
    labels = labels_of(part) if part.item.get("labels") else set()
    for row in rows_in(part.variables.get("claims", block.claims), part.item.common.claims, part.variables):
        needed = [name for name in row.get("needs", ()) if name != "other"]
        if labels and set(needed) <= labels and ("other" not in row.get("needs", ()) or other_part(part)):
            assert set(names_in(row)) <= labels
        elif not labels:
            for name in {*names_in(row)} - SPLIT.keys():
                results.runs_of(name)
    tables = [(construct(Table, each, "tables"), row) for each in block.tables for row in repeats(each, part.variables)]
    for column in (column for table, row in tables for cells in rows_of(table, results, row) for column in cells):
        if isinstance(column, Column) and not column.choice and not column.of.endswith(" none"):
            for name in filter(None, names_in({"of": column.of, "minus": column.minus})):
                results.runs_of(name)
    printed = [part.item.common.numbers[name]["numbers"] for name in listed(block.printed or [])]
    assert bool(results.printed) == any(part.title in numbers for numbers in printed)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"tabels": []}, "item: tabels: no such key; did you mean tables"),
        ({"runs": [{"methds": ["fedavg"]}]}, "item, runs: methds: no such key; did you mean methods"),
        ({"compare": [{"nmae": "n"}]}, "item, compare: nmae: no such key; did you mean name"),
        (
            {"tables": [{"name": "n", "title": "t", "rows": {}, "columns": {}, "stlye": "mean"}]},
            "stlye: no such key; did you mean style",
        ),
        (
            {"tables": [{"name": "n", "title": "t", "rows": {}, "columns": {"c": {"fo": "a"}}}]},
            "columns: fo: no such key",
        ),
        ({"pictures": [{"kind": "split", "titel": "t"}]}, "item, pictures: titel: no such key; did you mean title"),
        ({"pictures": [{"kind": "splits"}]}, "item, pictures: kind: splits is not possible.*did you mean split"),
        ({"claims": [{"kind": "rises", "off": ["a"]}]}, "item, claims: off: no such key; did you mean of"),
        ({"claims": {"all": ["some", {"kind": "rises", "off": ["a"]}]}}, "item, claims: off: no such key"),
    ],
    ids=str,
)
def test_a_key_that_there_is_not_gets_one_line_with_the_nearest_name(settings, line):
    with pytest.raises(PflError, match=line) as refused:
        verify(construct(Settings, settings, "item"), "item")
    assert "\n" not in str(refused.value)


def test_labels_are_those_of_the_methods():
    names = {
        kind.__name__: (kind.display_name, kind.doubled_name)
        for kind in (methods.FedRep, methods.FedAvg, methods.LGFedAvg)
    }
    assert names == {
        "FedRep": ("FedRep", "FedRep-SRPFL"),
        "FedAvg": ("FedAvg", "FLANP"),
        "LGFedAvg": ("LG-FedAvg", "LG-SRPFL"),
    }


def test_rules_hold_for_what_they_name_and_texts_have_variables():
    rules = ["--a={x}", {"if": {"x": 1, "y": [2, 3]}, "add": "--b='{name} c'"}, ["--d", {"if": {"x": 2}, "add": "--e"}]]
    assert options_of(rules, {"x": 1, "y": 3, "name": "n"}) == ["--a=1", "--b=n c", "--d"]
    assert options_of(rules, {"x": 2, "y": 3}) == ["--a=2", "--d", "--e"]
    assert fill({"a": ["{x}", "{x}!"]}, {"x": 1.5}) == {"a": [1.5, "1.5!"]}
    each = {"foreach": {"x": [1, 2], "y": "{ys}"}, "sum": "{x}{y}"}
    assert [row["sum"] for row in expanded(each, {"ys": [3, 4]})] == ["13", "14", "23", "24"]


# protocols of the papers


def own(run):
    options = run["model"]["init_args"]
    return {**options, **options.get("local", {})}


@pytest.mark.parametrize(("pair", "scale"), [("dirichlet", "small"), ("dirichlet", "two_cores"), ("2_classes", "full")])
def test_every_method_has_the_protocol_of_pfllib(pair, scale, settings):
    found = settings("pfllib", "fashion_mnist", scale, pair)
    assert len(found) == (7 if scale == "two_cores" else 19)
    for name, run in found.items():
        data, model = run["data"]["init_args"], own(run)
        assert class_name(data["partition"]["class_path"]) == {"dirichlet": "Dirichlet"}.get(pair, "GroupedShards")
        assert (data["num_clients"], data["test_fraction"], data["normalize"]) == (20, 0.25, "symmetric")
        assert data["val_fraction"] == (0.2 if name == "fedfomo" else 0)
        rate = 0.05 if name == "pfedme" else 0.005  # of pFedMe's personal models
        assert (model["lr"], model["batch_size"], model["weight_decay"]) == (rate, 10, 0)
        assert model.get("copy_lr", 0.005) == 0.005
        assert model.get("momentum", 0) == 0
        assert model.get("epochs", 1) * model.get("head_epochs", 1) == 1
        pool = data["participation"] and data["participation"]["init_args"]["pool_size"]
        expected = {"small": (0.25, 10, 100), "two_cores": (1.0, 10, 100), "full": (1.0, None, 2000)}
        assert (data["sample_fraction"], pool, run["trainer"]["max_steps"]) == expected[scale]


@pytest.mark.parametrize("pair", Item("niid_bench", "table3").pairs_at("full"))
def test_every_method_has_the_protocol_of_niid_bench(pair, settings):
    name, _, partition = pair.partition("-")
    for method, run in settings("niid_bench", "table3", "full", pair).items():
        data, model = run["data"]["init_args"], own(run)
        assert class_name(run["data"]["class_path"]).lower() == name.replace("_", "")
        kinds = {"dirichlet": "Dirichlet", "2_classes": "ClassShards", "iid": "IID"}
        assert class_name(data["partition"]["class_path"]) == kinds[partition]
        assert (data["num_clients"], model["epochs"], run["trainer"]["max_steps"]) == (10, 10, 50)
        rate = (0.1, 0) if method == "scaffold" else (0.01, 0.9)  # SCAFFOLD takes no momentum
        assert (model["lr"], model.get("momentum")) == rate


@pytest.mark.parametrize(
    ("pair", "scale", "clients", "rounds"),
    [("cifar100", "full", 128, 200), ("harbox", "full", 128, 200), ("fashion_mnist", "two_cores", 128, 200),
     ("fashion_mnist", "small", 32, 40), ("cifar10", "small", 16, 20)],
)  # fmt: skip
def test_deprls_runs_have_the_papers_optimizer_and_epochs(pair, scale, clients, rounds, settings):
    found = settings("deprl", "table7", scale, pair)
    keys = ("epochs", "head_epochs", "personal_epochs")
    spent = {name.partition(",")[0]: [own(run).get(key) for key in keys] for name, run in found.items()}
    plain, heads, second = [2, None, None], [1, 2, None], [2, None, 1]
    assert spent == {
        **dict.fromkeys(["d-psgd", "dispfl", "fedavg"], plain),
        **dict.fromkeys(["deprl", "fedrep"], heads),
        **dict.fromkeys(["ditto", "fedrod"], second),
    }
    for run in found.values():
        model = own(run)
        assert [model[key] for key in ("lr", "lr_decay", "momentum", "weight_decay")] == [0.01, 0.96, 0.9, 1e-5]
        assert model["clip_norm"] == (10.0 if scale == "full" else None)
        assert (run["data"]["init_args"]["num_clients"], run["trainer"]["max_steps"]) == (clients, rounds)
        assert model.get("drop_rounds", rounds) == rounds
        assert model["batch_size"] == (128 if pair == "cifar100" else 16)


@pytest.mark.parametrize(("pair", "scale"), [("fashion_mnist", "small"), ("harbox", "full")])
def test_speed_ups_are_of_whole_epochs_that_last_as_long_as_there_are_samples(pair, scale, settings):
    for run in settings("deprl", "table9", scale, pair).values():
        data = run["data"]["init_args"]
        assert (data["time_per"], data["speeds"]["init_args"]["seconds"]) == ("sample", 5e-5)
        assert own(run)["epoch_steps"] is None


def test_delta_fl_has_test_devices_and_fedavg_a_weight_decay_of_its_own(settings):
    found = settings("delta_fl", "table2", "small", "femnist_linear")
    for run in found.values():
        data = run["data"]["init_args"]
        assert (data["test_clients"], data["eval_train"], data["val_fraction"]) == (0.5, True, 0.0)
        assert run["percentile_errors"]["errors"] is True
    assert [own(run)["weight_decay"] for run in found.values()] == [1e-9, 1e-7]


def test_fedmacs_figure_2_varies_one_setting_at_a_time(settings):
    found = [own(run) for run in settings("fedmac", "fig2", "small", "mnist_dnn", every=True).values()]
    assert [model["epochs"] for model in found] == [5, 10, 20, 40, 20, 20, 20]
    assert [model["server_optimizer"]["init_args"]["lr"] for model in found] == [1, 1, 1, 1, 1, 2, 4]
    alone = [own(run) for run in settings("fedmac", "fig2_correlation", "small", "mnist_dnn", every=True).values()]
    assert [model["correlation"] for model in alone] == [0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3]
    assert {(model["correlation"], model["copy_lr"]) for model in found} == {(0.01, 7.5)}
    assert len({repr({**model, "correlation": None}) for model in alone}) == 1, "all else is fixed"


def test_fedmacs_table_4_prunes_and_tracks_every_method(settings):
    for run in settings("fedmac", "table4", "small", "mnist_dnn").values():
        sparsity = own(run)["sparsity"]
        assert (sparsity["weight"], sparsity["smoothing"], sparsity["prune"]) == (0.001, 0.01, True)
        assert "SparsityTracker" in [class_name(each["class_path"]) for each in run["trainer"]["callbacks"]]


@pytest.mark.parametrize("item", ["fig3", "fig4", "fig5", "fig6", "fig8_imbalanced", "fig8_natural", "fig8_correlated"])
def test_two_cores_have_srpfls_clients_rounds_and_stages(item, settings):
    for title in Item("srpfl", item).pairs_at("two_cores"):
        run = settings("srpfl", item, "two_cores", title, methods=["fedrep-srpfl"])["fedrep-srpfl"]
        data, trainer = run["data"]["init_args"], run["trainer"]
        pool = data["participation"] and data["participation"]["init_args"]["pool_size"]
        assert (data["num_clients"], pool) == (100, 20 if item in ("fig4", "fig6") else None)
        (stages,) = [each["init_args"] for each in trainer["callbacks"] if "Doubling" in each["class_path"]]
        assert (trainer["max_steps"], stages["n0"], stages["rounds_per_stage"]) == (150, 10, 10)


@pytest.mark.parametrize("item", ["fig8_imbalanced", "fig8_natural"])
def test_unequal_clients_of_srpfl_have_equal_weights_and_double_in_both_units(item, settings):
    (title,) = Item("srpfl", item).pairs_at("small")
    runs = settings("srpfl", item, "small", title)
    assert {own(run)["weighting"] for run in runs.values()} == {"uniform"}
    doubling = {name: run["trainer"]["callbacks"][-1]["init_args"] for name, run in runs.items() if name != "fedrep"}
    stages = {"n0": 5, "rounds_per_stage": 8}
    assert doubling == {
        "fedrep-srpfl": stages | {"double_by": "clients"},
        "by_samples/fedrep-srpfl": stages | {"double_by": "samples"},
    }


@pytest.mark.parametrize("item", ["fig4", "fig6", "fig8_natural", "fig8_correlated"])
@pytest.mark.parametrize("scale", SCALES)
def test_a_panel_of_srpfl_is_compared_with_one_of_another_figure_that_differs_in_nothing_else(item, scale):
    for title in Item("srpfl", item).pairs_at(scale):
        part = part_of("srpfl", item, scale, title)
        other = other_part(part)
        # a figure with sampled clients has other local epochs on two cores than the one beside it
        assert (other is None) == (scale == "two_cores" and item in ("fig4", "fig6"))
        if other and item != "fig8_natural":
            assert other.variables["data"] == part.variables["data"]


def test_hf_mamls_grid_changes_one_setting_at_a_time_and_authors_runs_are_of_classes_here(settings):
    first, *points = (sweep.vary for sweep in part_of("srpfl", "hf_maml_grid", "small", "").sweeps())
    assert [sum(first[key] != point[key] for key in first) for point in points] == [1] * 5
    found = list(settings("srpfl", "hf_maml", "small", "", every=True).values())
    kinds = [class_name(run["model"]["class_path"]) for run in found]
    assert kinds == ["AdaptedFedAvg"] * 3 + ["AliasedHFMAML"]
    assert {run["data"]["init_args"]["val_fraction"] for run in found} == {0.2}
    assert [own(found[3])[key] for key in ("lr", "inner_lr", "epochs")] == [0.1, 0.01, 5]


@pytest.mark.parametrize(
    ("item", "option", "values", "count"),
    [
        ("search", "lr", [0.1, 0.3, 1.0, 3.0, 10.0], 5),
        ("penalties", "weight_decay", [10.0**power for power in range(-10, -4)], 24),
    ],
)
def test_searches_of_delta_fl_are_evaluated_on_half_of_the_training_devices(item, option, values, count, settings):
    part = ("delta_fl", item, "small", "femnist_linear")
    sweeps = part_of(*part).sweeps()
    assert sum(len(sweep.names) for sweep in sweeps) == count
    assert all(sweep.vary[f"model.local.{option}"] == pytest.approx(values) for sweep in sweeps)
    for run in settings(*part).values():
        assert run["data"]["init_args"]["val_clients"] == 0.5
        assert own(run)[option] == pytest.approx(values[0])


def test_each_variant_of_srpfls_rates_changes_fedrep_at_the_papers_rate(settings):
    runs = settings("srpfl", "rates", "small", "femnist", every=True)
    assert {run["data"]["init_args"]["val_fraction"] for run in runs.values()} == {0.2}
    assert {run["trainer"]["max_steps"] for run in runs.values()} == {20}
    variants = {name: repr(own(run)) for name, run in runs.items() if name.endswith("/fedrep,lr=0.1")}
    assert (len(runs), len(variants), len(set(variants.values()))) == (14, 6, 6)
