"""The parser of every command: settings files by name, and one line for what is wrong."""

import os
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NoReturn

from jsonargparse import Namespace

from pfl_lightning.cli.console import debugging, say_once
from pfl_lightning.cli.own_files import MORE, blame
from pfl_lightning.errors import PflError
from pfl_lightning.settings.messages import explain
from pfl_lightning.settings.parser import StrictParser
from pfl_lightning.settings.shipped_files import with_config_files


class PflParser(StrictParser):
    """Answers a wrong command line with one line and exit code 2."""

    source = ""  # the run whose settings the words of the command line begin with
    _file = ""  # the settings file, or that run, that is being read

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, "usage": "pfl COMMAND [options]", **kwargs})

    def parse_args(self, args: Any = (), *others: Any, **kwargs: Any) -> Any:
        """Parse arguments; a settings file may be given by its name in the package.

        A file of the user's own that fails when it is imported is an error in them, and so is an option that was given
        to a class before another class was chosen that does not have it.
        """
        try:
            words = list(with_config_files(_up_to_help(args)))
            _check_text(words)
            settings = super().parse_args(words, *others, **kwargs)
            for key, name in _given_before_their_class(words):
                chosen = settings.get(key)
                if isinstance(chosen, Namespace) and "class_path" in chosen and name not in chosen.get("init_args", {}):
                    kind = chosen.class_path.rpartition(".")[2]
                    raise PflError(f"{key}.{name}: {kind} has no such option; allowed: options of {kind}")
            return settings
        except Exception as error:  # whatever such a file raises
            if debugging() or not (isinstance(error, PflError | OverflowError) or blame(error)):
                raise
            self.error(str(error), error)

    def parse_path(self, cfg_path: Any, *others: Any, **kwargs: Any) -> Any:
        """Parse a settings file, which errors will name."""
        outer, self._file = self._file, str(cfg_path)
        try:
            return super().parse_path(cfg_path, *others, **kwargs)
        except ValueError as error:  # no text
            self.error(f"Problems parsing config: {error}", error)
        finally:
            self._file = outer

    def parse_string(self, content: str, *others: Any, **kwargs: Any) -> Any:
        """Parse the settings of a run, which errors will name."""
        outer, self._file = self._file, self._file or self.source
        try:
            return super().parse_string(content, *others, **kwargs)
        except OverflowError as error:
            self.error(f"Problems parsing config: {error}", error)
        finally:
            self._file = outer

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print what is wrong, and where help is."""
        if not self.exit_on_error:
            super().error(message, ex)
        if debugging() and ex:
            raise ex
        place = blame(ex)
        line = f"{place} {MORE}" if place else explain(message, self.options())
        line = f"{line} (in {self._file})" if self._file else line
        say_once(line)
        raise SystemExit(2) from PflError(line)

    def options(self) -> list[str]:
        """Every option that this parser knows, such as ``--trainer.max_steps``."""
        return [*self._option_string_actions]


def _up_to_help(words: Sequence[str]) -> Iterator[str]:
    """The words, without options that follow one such as ``--model.help FedRep`` and ask for nothing themselves."""
    asked = dropped = False
    for word in words:
        if word.startswith("-"):
            asks = word.partition("=")[0].endswith(".help")
            asked, dropped = asked or asks, asked and not asks
        if not dropped:
            yield word


def _check_text(words: Sequence[str]) -> None:
    """Refuse bytes that are no text, which no settings file could hold."""
    for before, word in pairwise(["", *words]):
        if not word.isascii() and (shown := os.fsencode(word).decode(errors="backslashreplace")) != word:
            option, given, value = shown.partition("=")
            key, value = (option, value) if given else (before, shown)
            raise PflError(f"{key.lstrip('-')}: {value} is not possible; allowed: text in UTF-8")


def _given_before_their_class(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Keys of classes that are chosen after an option of theirs was given, and the name of that option."""
    options = [word.partition("=")[0] for word in words]
    for place, option in enumerate(options):
        for dot in re.finditer(r"\.", option):
            if option[: dot.start()] in options[place + 1 :]:
                yield option[2 : dot.start()], option[dot.end() :].partition(".")[0]
