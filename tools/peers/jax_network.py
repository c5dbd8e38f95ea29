"""The network in JAX, with weights ``[in, out]``, which the matrix products like best."""

import jax
import jax.numpy as jnp

from peers.work import Array


def loss(weights: dict[str, jax.Array], layers: list[str], x: jax.Array, y: jax.Array) -> jax.Array:
    """Mean cross-entropy of a batch."""
    for name in layers:
        x = x if name == layers[0] else jax.nn.relu(x)
        x = x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return -jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], axis=1).mean()


def transposed(name: str, array: Array) -> Array:
    """Weights the other way round; biases as they are."""
    return array.T if name.endswith("weight") else array
