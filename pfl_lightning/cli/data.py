"""``pfl data prepare`` and ``pfl data describe``."""

import re

from pfl_lightning.callbacks.figures import graph_figure
from pfl_lightning.cli.console import CONSOLE, show
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.data.reading import loading_status
from pfl_lightning.errors import PflError, SettingsError, one_line
from pfl_lightning.paths import expand_home
from pfl_lightning.report import partition_figure, partition_table, save_figure
from pfl_lightning.runs.run_settings import make_parts, parse_words, run_parser
from pfl_lightning.settings.parser import SettingsParser

USAGE = """usage: pfl data prepare NAME --root DIR [options of the data set]
       pfl data describe [--figure FILE] [options of fit]

prepare downloads, checks and converts the files of a data set. NAME may be the
import path of your own, such as my_data.MyData; pfl data prepare NAME --help
shows its options.

describe shows which client holds what, and the graph of a method without a
server: as a table, and in a figure (default: partition.png)."""


def data_command(args: list[str]) -> None:
    """Run ``pfl data``.

    Args:
        args: What follows ``data``.

    Raises:
        SystemExit: With code 2 if there is no such subcommand, 0 after help.
        PflError: If the data cannot be loaded or split.
    """
    command = args[0] if args else None
    if {"-h", "--help"} & {*(args[:2] if command == "prepare" else args)}:
        CONSOLE.print(USAGE)
    elif command == "prepare":
        prepare(args[1:])
    elif command == "describe":
        describe(args[1:])
    else:
        what = f"{command} is not possible" if command else "a subcommand is missing"
        raise SettingsError(f"data: {what}; allowed: prepare, describe")


def prepare(args: list[str]) -> None:
    """Prepare the files of a data set, and load them once to check them.

    Args:
        args: Name or import path, and options.

    Raises:
        SystemExit: With code 2 if there is no such data set or option.
        PflError: If the data cannot be loaded.
    """
    parser = SettingsParser(prog="pfl data prepare")
    parser.add_subclass_arguments(FederatedDataModule, "data")
    if not args or args[0].startswith("-"):
        raise SettingsError("data prepare: a name is missing; see pfl list data")
    words = [f"--data={args[0]}", *(re.sub("^--", "--data.", word) for word in args[1:])]
    if {"-h", "--help"} & {*args}:
        words = [f"--data.help={args[0]}"]
    data = parser.instantiate(parser.parse_args(words)).data
    name = type(data).__name__
    with loading_status(name):
        data.prepare_data()
        train, test = data.load_checked()
        data.pretrained()
    users = train.join(test).users
    counts = f"{len(train.targets):,}"
    if test is not None:
        counts += f" training and {len(test.targets):,} test"
    counts += " samples" if users is None else f" samples of {len(users.unique()):,} users"
    shape = f"{data.input_kind} of the shape {list(data.input_shape)}"
    show(f"{name} in '{getattr(data, data.files_option)}': {counts}; {shape}, {data.task.goal}")


def describe(args: list[str]) -> None:
    """Show the clients of a run, and the graph of a method without a server.

    Args:
        args: Options of ``pfl fit``, and ``--figure``; its extension chooses the format.

    Raises:
        PflError: If they are wrong, or the data cannot be loaded or split.
    """
    parser = run_parser()
    parser.add_argument("--figure", type=str, default="partition.png")
    parsed = parse_words(parser, args)
    path = expand_home(parsed.pop("figure"), "figure")
    parts = make_parts(parser, parsed)
    data = parts.data
    data.setup()
    counts = data.class_counts()
    figures = {path: partition_figure(counts, type(data).__name__)}
    if not data.new_clients and (graph := graph_figure(parts.method, data)):
        figures[path.with_stem(f"{path.stem}_topology")] = graph
    CONSOLE.print(partition_table(counts), soft_wrap=False)
    if data.understood:
        show(f"{type(data).__name__} was taken for\n{data.understood}")
    for place, figure in figures.items():
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            save_figure(figure, place, dpi=150)
        except (OSError, ValueError) as error:
            raise PflError(f"figure: {place} is not possible ({one_line(error)}); allowed: a file") from error
        show(f"Figure: {place}")
