"""Flax linen with batch normalisation and dropout: `mutable=["batch_stats"]` and `rngs=`."""

import flax.linen as nn
import jax
import jax.numpy as jnp

import pullback as pb

jax.config.update("jax_enable_x64", True)


class Net(nn.Module):
    """Dense, batch normalisation (if asked for), tanh, dropout, dense."""

    norm: bool

    @nn.compact
    def __call__(self, x, train: bool):
        h = nn.Dense(16, param_dtype=float)(x)
        if self.norm:
            h = nn.BatchNorm(use_running_average=not train, momentum=0.9, param_dtype=float)(h)
        h = nn.Dropout(0.05, deterministic=not train)(nn.tanh(h))
        return nn.Dense(1, param_dtype=float)(h)


x = jax.random.uniform(jax.random.key(1), (200, 2), minval=-1)
y = jnp.sin(3 * x[:, :1]) * x[:, 1:]
square = lambda z, y: jnp.sum((z - y) ** 2, axis=1) / 2
rule = pb.step.LevenbergMarquardt(rate=0.3, minimum=1e-3)


def batches(key):
    """The data, with new masks in every step."""
    return {"x": x, "key": jax.random.split(key, len(x))}, y


def report(name, fit, z):
    """Print what was reached, and check it."""
    error, losses = jnp.sqrt(jnp.mean((z - y) ** 2)), fit.history["loss"]
    print(f"{name}: loss {losses[0]:.1e} -> {losses[-1]:.1e}, inference error {error:.3f}")
    assert error < 0.1


# Dropout alone. Every sample has a key of its own, so that its outputs do not depend on the others.
net = Net(norm=False)
params = net.init(jax.random.key(0), x, train=False)
one = lambda params, x, key: net.apply(params, x, train=True, rngs={"dropout": key})
model = lambda params, inputs: jax.vmap(one, (None, 0, 0))(params, inputs["x"], inputs["key"])
opt = pb.NaturalGradientDescent(pb.Composite(model, square), step=rule)
fit = pb.fit(opt, params, batches, steps=60)
report("linen, dropout", fit, net.apply(fit.params, x, train=False))

# With batch normalisation the samples are coupled, and one key may serve the whole batch.
net = Net(norm=True)
state = dict(net.init(jax.random.key(0), x, train=False))
params = state.pop("params")
# Flax makes running statistics in float32.
state = jax.tree.map(lambda s: s.astype(float), state)


def model_with_state(params, state, inputs):
    """Outputs and the new running statistics."""
    rngs, variables = {"dropout": inputs["key"][0]}, {"params": params, **state}
    return net.apply(variables, inputs["x"], train=True, rngs=rngs, mutable=["batch_stats"])


problem = pb.Composite(model_with_state, square, coupled=True, stateful=True)
opt = pb.NaturalGradientDescent(problem, step=rule)
fit = pb.fit(opt, pb.Stateful(params, state), batches, steps=60)
variables = {"params": fit.params.params, **fit.params.state}
report("linen, batch norm and dropout", fit, net.apply(variables, x, train=False))
