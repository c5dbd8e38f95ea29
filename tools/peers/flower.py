"""A round of FedAvg in Flower's simulation: Ray, as many actors as threads, one core each."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from peers.work import Program, Weights, Work, arguments, read, run, threads

ACTORS = threads()
HOME = tempfile.TemporaryDirectory(prefix="flwr")
# before Flower and Ray start: one thread an actor, no reports to anyone, and nothing left behind in the home folder
os.environ |= {
    "OMP_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_HOME": HOME.name,
}

import torch  # noqa: E402  # after the number of threads
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402

from peers.plain_torch import network, train_client  # noqa: E402

client_app = ClientApp()
server_app = ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One client's round; an actor keeps the samples that it has read once."""
    torch.set_num_threads(1)
    settings = message.content["config"]
    work = read(Path(settings["data"]))
    model = network(work)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train_client(model, work, settings["number"], int(context.node_config["partition-id"]))
    metrics = MetricRecord({"num-examples": work.targets.shape[1]})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


class Complete(FedAvg):
    """Flower goes on without the clients that fail; a measurement must not."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """The mean, if there is a result of everybody."""
        replies = list(replies)
        if any(reply.has_error() for reply in replies) or len(replies) < self.min_train_nodes:
            raise RuntimeError("clients have failed")
        return super().aggregate_train(server_round, replies)


class Flower(Program):
    """``FedAvg`` of all clients, round by round."""

    packages = ("flwr", "ray", "torch", "numpy")

    def __init__(self, work: Work, grid: Grid) -> None:
        self.grid = grid
        self.data = str(arguments()[0])
        clients = len(work.targets)
        self.strategy = Complete(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        self.arrays = ArrayRecord(network(work).state_dict())

    def round(self, number: int) -> None:
        """One round of FedAvg."""
        settings = ConfigRecord({"number": number, "data": self.data})
        result = self.strategy.start(self.grid, self.arrays, num_rounds=1, train_config=settings)
        self.arrays = result.arrays

    def weights(self) -> Weights:
        """The server's arrays."""
        return {name: tensor.numpy() for name, tensor in self.arrays.to_torch_state_dict().items()}


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """All rounds; they run inside the simulation, since the grid lives no longer than that."""
    run(lambda work: Flower(work, grid))


if __name__ == "__main__":
    cores = {"num_cpus": 1, "num_gpus": 0.0}
    run_simulation(
        server_app,
        client_app,
        num_supernodes=len(read(arguments()[0]).targets),
        backend_config={"client_resources": cores, "init_args": {"num_cpus": ACTORS, "include_dashboard": False}},
    )
