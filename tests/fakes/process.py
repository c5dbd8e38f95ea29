"""One of several processes that train methods together, as the launchers of torch and Lightning start them."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

PROCESSES = int(os.environ.get("WORLD_SIZE", "1"))


def run_together(count: int, *arguments: object, seconds: float = 300) -> None:
    """Start processes of this file, each with the arguments; wait until they have ended."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launch = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
    path = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "fakes.process", *map(str, arguments)],
            env={**os.environ, **launch, **path, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        said = [process.communicate(timeout=seconds)[0] for process in started]
    except subprocess.TimeoutExpired:
        raise AssertionError(f"a process still runs after {seconds:g} s") from None
    finally:
        for process in started:
            process.kill()
    assert not any(process.returncode for process in started), "\n".join(said)


def main(folder: str, rounds: str, clients: str, dtype: str, resumed: str, *names: str) -> None:
    """Train methods of the contract test for some rounds, each in a folder of its own.

    Args:
        folder: Where the folders are.
        rounds: Number of rounds in all.
        clients: Number of clients.
        dtype: Float type.
        resumed: Where the folders of runs are that are continued; empty for new runs.
        names: Names of the methods; all if there are none.
    """
    import torch
    from conftest import RaggedData
    from methods.test_contract import METHODS, NETWORKS

    from pfl_lightning.federation import client_states

    client_states.DEVICE_BLOCK_BYTES = 512  # several blocks for a tensor
    torch.set_num_threads(1)
    torch.set_default_dtype(getattr(torch, dtype))
    for name in names or METHODS:
        method = METHODS[name](network=NETWORKS["mlp"], batch_size=4)
        last = Path(resumed, name, "checkpoints/last.ckpt") if resumed else None
        train(method, RaggedData(num_clients=int(clients)), int(rounds), Path(folder, name), last)


def train(method: Any, data: Any, rounds: int, folder: Path, ckpt_path: Path | None) -> None:
    """Train with as many processes as there are, with tables and checkpoints."""
    import lightning.pytorch as pl

    from pfl_lightning.callbacks import EvaluateStartAndEnd, MetricsTable, PercentileErrors, RoundCheckpoint

    os.environ["WORLD_SIZE"] = str(PROCESSES)  # Lightning removes it after a run
    table = MetricsTable(folder)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=PROCESSES,
        strategy="ddp" if PROCESSES > 1 else "auto",
        max_steps=rounds,
        max_epochs=-1,
        check_val_every_n_epoch=None,
        val_check_interval=2,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        enable_model_summary=False,
        enable_progress_bar=False,
        default_root_dir=folder,
        logger=table,
        callbacks=[EvaluateStartAndEnd(), PercentileErrors(), RoundCheckpoint(), table],
    )
    trainer.fit(method, data, ckpt_path=ckpt_path, weights_only=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
