"""A round of FedAvg in fedjax."""

import jax
import numpy as np

jax.tree_map = jax.tree_util.tree_map  # fedjax calls it by a name that newer releases of jax have dropped

import fedjax  # noqa: E402  # after the name is back
import jax.numpy as jnp  # noqa: E402
from fedjax.algorithms import fed_avg  # noqa: E402

from peers.work import Program, Weights, Work, run  # noqa: E402


class FedJax(Program):
    """``fed_avg.federated_averaging``; clients get their samples in order, since only shuffling can be switched off."""

    packages = ("fedjax", "jax", "numpy")

    def __init__(self, work: Work) -> None:
        self.work = work
        batches = fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch_size, num_epochs=1, skip_shuffle=True)
        self.algorithm = fed_avg.federated_averaging(
            jax.grad(self.loss),
            fedjax.optimizers.sgd(work.lr, work.momentum),
            fedjax.optimizers.sgd(1.0),  # the server goes all the way to the mean
            batches,
        )
        # a copy: its leaves are the server's state
        self.state = self.algorithm.init({name: jnp.asarray(array) for name, array in work.weights.items()})
        self.clients: list[tuple[bytes, fedjax.ClientDataset, jax.Array]] = []

    def loss(self, weights: dict[str, jax.Array], batch: dict[str, jax.Array], key: jax.Array) -> jax.Array:
        """Mean cross-entropy of a batch."""
        x = batch["x"]
        for name in self.work.layers:
            x = x if name == self.work.layers[0] else jax.nn.relu(x)
            x = x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
        return -jnp.take_along_axis(jax.nn.log_softmax(x), batch["y"][:, None], axis=1).mean()

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
        return {name: np.asarray(array) for name, array in self.state.params.items()}


if __name__ == "__main__":
    run(FedJax)
