"""A round of FedAvg in fedjax."""

import jax
import numpy as np

jax.tree_map = jax.tree_util.tree_map  # fedjax calls it by a name that newer releases of jax have dropped

import fedjax  # noqa: E402  # after the name is back
import jax.numpy as jnp  # noqa: E402
from fedjax.algorithms import fed_avg  # noqa: E402

from peers.jax_network import loss, transposed  # noqa: E402
from peers.work import Program, Weights, Work, run  # noqa: E402


class FedJax(Program):
    """``fed_avg.federated_averaging``; clients get their samples in order, since only shuffling can be switched off."""

    packages = ("fedjax", "jax", "numpy")

    def __init__(self, work: Work) -> None:
        self.work = work
        batches = fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch_size, num_epochs=1, skip_shuffle=True)
        self.algorithm = fed_avg.federated_averaging(
            jax.grad(lambda weights, batch, key: loss(weights, work.layers, batch["x"], batch["y"])),
            fedjax.optimizers.sgd(work.lr, work.momentum),
            fedjax.optimizers.sgd(1.0),  # the server goes all the way to the mean
            batches,
        )
        # a copy: its leaves are the server's state
        start = {name: jnp.asarray(transposed(name, array)) for name, array in work.weights.items()}
        self.state = self.algorithm.init(start)
        self.clients: list[tuple[bytes, fedjax.ClientDataset, jax.Array]] = []

    def prepare(self, number: int) -> None:
        """Data sets with the samples in the round's order."""
        keys = jax.random.split(jax.random.PRNGKey(number), len(self.work.targets))
        samples = zip(*self.work.ordered(number), keys, strict=True)
        self.clients = [
            (str(client).encode(), fedjax.ClientDataset({"x": x, "y": y}), key)
            for client, (x, y, key) in enumerate(samples)
        ]

    def round(self, number: int) -> None:
        """One round of FedAvg."""
        self.state, _ = self.algorithm.apply(self.state, self.clients)
        jax.block_until_ready(self.state.params)

    def weights(self) -> Weights:
        """The server's parameters."""
        return {name: transposed(name, np.asarray(array)) for name, array in self.state.params.items()}


if __name__ == "__main__":
    run(FedJax)
