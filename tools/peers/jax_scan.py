"""The round that an expert would write by hand in JAX: one jitted program.

Each core gets its share of the clients and trains them one after the other, by a scan over steps within a scan over
clients that carries the sum of the results. Clients side by side (``vmap`` over all, or over chunks of 2 to 25) take
two to five times as long on a CPU: their weights, momentum and gradients then leave the cache in every step.
"""

import math
import os
from functools import partial

import numpy as np

from peers.work import Program, Weights, Work, run, threads

# XLA gives one CPU device work for all cores, but a network as small as this does not keep two of them busy
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={threads()}"

import jax  # after its flags
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from peers.jax_network import loss, transposed

Tree = dict[str, jax.Array]
CLIENTS = "clients"


class JaxScan(Program):
    """FedAvg as one program."""

    packages = ("jax", "jaxlib", "numpy")

    def __init__(self, work: Work) -> None:
        self.work = work
        cores = math.gcd(threads(), len(work.targets))  # each needs as many clients as the others
        mesh = Mesh(np.array(jax.devices()[:cores]), (CLIENTS,))
        everywhere = PartitionSpec()
        split = PartitionSpec(CLIENTS)
        per_client = NamedSharding(mesh, split)
        self.inputs = jax.device_put(work.inputs, per_client)
        self.targets = jax.device_put(work.targets.astype(np.int32), per_client)
        self.orders = [jax.device_put(order.astype(np.int32), per_client) for order in work.orders]
        first = {name: transposed(name, array).copy() for name, array in work.weights.items()}
        self.current = jax.device_put(first, NamedSharding(mesh, everywhere))
        share = partial(share_of_round, work)
        specs = (everywhere, split, split, split)
        # the checker of replicas does not follow the mean through a scan
        sharded = jax.shard_map(share, mesh=mesh, in_specs=specs, out_specs=everywhere, check_vma=False)
        self.step = jax.jit(sharded, donate_argnums=0)

    def round(self, number: int) -> None:
        """One round of FedAvg."""
        self.current = jax.block_until_ready(self.step(self.current, self.inputs, self.targets, self.orders[number]))

    def weights(self) -> Weights:
        """The weights, turned back."""
        return {name: transposed(name, np.asarray(array)) for name, array in self.current.items()}


def share_of_round(work: Work, weights: Tree, inputs: jax.Array, targets: jax.Array, orders: jax.Array) -> Tree:
    """One core's clients, one after the other; the mean is over the clients of all cores."""

    def next_client(total: Tree, samples: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[Tree, None]:
        return jax.tree.map(jnp.add, total, client(work, weights, *samples)), None

    nothing = jax.tree.map(jnp.zeros_like, weights)
    total, _ = lax.scan(next_client, nothing, (inputs, targets, orders))
    mean: Tree = jax.tree.map(lambda array: lax.pmean(array / len(inputs), CLIENTS), total)
    return mean


def client(work: Work, weights: Tree, inputs: jax.Array, targets: jax.Array, order: jax.Array) -> Tree:
    """One client's weights after its steps with heavy-ball momentum."""

    def next_step(state: tuple[Tree, Tree], batch: jax.Array) -> tuple[tuple[Tree, Tree], None]:
        current, velocity = state
        gradients = jax.grad(loss)(current, work.layers, inputs[batch], targets[batch])
        velocity = jax.tree.map(lambda speed, gradient: work.momentum * speed + gradient, velocity, gradients)
        return (jax.tree.map(lambda weight, speed: weight - work.lr * speed, current, velocity), velocity), None

    rest = jax.tree.map(jnp.zeros_like, weights)
    trained: Tree
    (trained, _), _ = lax.scan(next_step, (weights, rest), order.reshape(-1, work.batch_size))
    return trained


if __name__ == "__main__":
    run(JaxScan)
