"""``python -m pfl_lightning``, and the command ``pfl``."""

import os
import signal


def start() -> None:
    """Run the command line; Ctrl-C while its packages are imported, which takes seconds, ends it without a word."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    from pfl_lightning.cli import main

    signal.signal(signal.SIGINT, handler)
    main()


if __name__ == "__main__":
    start()
