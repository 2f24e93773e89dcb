"""Equinox with batch normalisation and dropout: running statistics are a state, and every batch
brings the keys of its masks.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

import pullback as pb

jax.config.update("jax_enable_x64", True)


class Net(eqx.Module):
    """Linear, batch normalisation, tanh, dropout, linear: one sample."""

    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout
    last: eqx.nn.Linear

    def __init__(self, key):
        """Build a network of 16 hidden units."""
        one, two = jax.random.split(key)
        self.first = eqx.nn.Linear(2, 16, key=one)
        self.norm = eqx.nn.BatchNorm(16, axis_name="batch", momentum=0.9, mode="batch")
        self.dropout = eqx.nn.Dropout(0.05)
        self.last = eqx.nn.Linear(16, 1, key=two)

    def __call__(self, x, key, state):
        """Return the outputs and the new running statistics."""
        h, state = self.norm(self.first(x), state)
        return self.last(self.dropout(jnp.tanh(h), key=key)), state


def model(net, state, inputs):
    """The whole batch: one state goes in, one comes out."""
    over = jax.vmap(net, in_axes=(0, 0, None), out_axes=(0, None), axis_name="batch")
    return over(inputs["x"], inputs["key"], state)


x = jax.random.uniform(jax.random.key(1), (200, 2), minval=-1)
y = jnp.sin(3 * x[:, :1]) * x[:, 1:]


def batches(key):
    """The data, with new masks in every step."""
    return {"x": x, "key": jax.random.split(key, len(x))}, y


# Batch normalisation mixes the samples (coupled) and has running statistics (stateful).
square = lambda z, y: jnp.sum((z - y) ** 2, axis=1) / 2
problem = pb.Composite(model, square, coupled=True, stateful=True)
rule = pb.step.LevenbergMarquardt(rate=0.3, minimum=1e-3)
opt = pb.NaturalGradientDescent(problem, step=rule)
net, state = eqx.nn.make_with_state(Net)(jax.random.key(0))
fit = pb.fit(opt, pb.Stateful(net, state), batches, steps=60)

# Evaluation: running statistics in place of those of the batch, and no masks.
net, state = fit.params.params, fit.params.state
seen = int(state.get(net.norm.batch_counter))
z, _ = model(eqx.nn.inference_mode(net), state, batches(jax.random.key(0))[0])
error = jnp.sqrt(jnp.mean((z - y) ** 2))
h = fit.history
print(f"Equinox, batch norm and dropout: loss {h['loss'][0]:.1e} -> {h['loss'][-1]:.1e}")
print(f"running statistics of {seen} batches, {h['accepted'].sum()} steps were accepted")
print(f"inference: root mean square error {error:.3f}, that of zero {jnp.sqrt(jnp.mean(y**2)):.3f}")
assert seen == h["accepted"].sum() and error < 0.1
