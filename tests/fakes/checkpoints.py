"""A checkpoint with nothing but what is asked of one."""

from typing import Any

import torch

COUNTS = {"ready": 2, "completed": 2}
PROGRESS = {"total": COUNTS, "current": COUNTS}


def content(rounds: int = 2, **changes: Any) -> dict[str, Any]:
    """The entries of a checkpoint of ``pfl fit`` after some rounds."""
    steps = {"total": {"ready": rounds, "completed": rounds}, "current": COUNTS}
    return {
        "pytorch-lightning_version": "2.6.0",
        "method": "pfl_lightning.methods.fedavg.FedAvg",
        "global_step": rounds,
        "state_dict": {"network.fc1.weight": torch.zeros(10, 64)},
        "shape": {
            "input_shape": (1, 8, 8),
            "num_classes": 10,
            "num_clients": 20,
            "test_only": False,
            "input_kind": "numbers",
        },
        "hyper_parameters": {},
        "given": {"loss": None, "lr_schedule": None},
        "clock": {"rounds": rounds, "compute": 1.5, "total": 2.5, "ready": {}},
        "engine": {"choices": {}, "limit": None},
        "loops": {
            "fit_loop": {
                "state_dict": {"combined_loader": [{"done": rounds}]},
                "epoch_progress": PROGRESS,
                "epoch_loop.state_dict": {"_batches_that_stepped": rounds},
                "epoch_loop.batch_progress": {**PROGRESS, "is_last_batch": False},
                "epoch_loop.val_loop.batch_progress": PROGRESS,
                "epoch_loop.manual_optimization.optim_step_progress": steps,
            }
        },
        "callbacks": {},
        "optimizer_states": [{"state": {}, "param_groups": [{"params": [0]}]}],
        "lr_schedulers": [],
        "fingerprint": "",
        "config": {
            "checkpoint": {},
            "trainer": {"callbacks": None},
            "model": {"class_path": "pfl_lightning.methods.FedAvg", "init_args": {}},
            "data": {"class_path": "pfl_lightning.data.Digits", "init_args": {}},
        },
        **changes,
    }
