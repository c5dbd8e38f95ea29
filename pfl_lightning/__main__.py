"""``python -m pfl_lightning``, and the command ``pfl``."""

import atexit
import gc
import os
import signal


def start() -> None:
    """Run the command line; Ctrl-C while a command is imported, which may take seconds, ends it without a word."""
    if not os.environ.get("PFL_DEBUG"):
        os.environ.setdefault(
            "TORCH_CPP_LOG_LEVEL", "FATAL"
        )  # read once: it logs what the errors of processes say, too
    # the last of all that is done at exit: libraries such as Triton report what freezing has kept from being collected
    atexit.register(os.dup2, os.open(os.devnull, os.O_WRONLY), 2)
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    from pfl_lightning.cli.main import prepare

    gc.disable()  # a fifth of the time that imports take, and they leave hardly any cycles
    run = prepare()
    gc.freeze()  # or each full collection, and the end of the process, would look through them all again
    gc.enable()
    signal.signal(signal.SIGINT, handler)
    run()


if __name__ == "__main__":
    start()
