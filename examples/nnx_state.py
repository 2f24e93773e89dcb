"""Flax NNX with batch normalisation and dropout: parameters move, all other variables are state."""

import jax
import jax.numpy as jnp
from flax import nnx

import pullback as pb

jax.config.update("jax_enable_x64", True)


class Net(nnx.Module):
    """Linear, batch normalisation, tanh, dropout, linear."""

    def __init__(self, rngs):
        """Build a network of 16 hidden units."""
        self.first = nnx.Linear(2, 16, param_dtype=float, rngs=rngs)
        self.norm = nnx.BatchNorm(16, momentum=0.9, param_dtype=float, rngs=rngs)
        self.dropout = nnx.Dropout(0.05, rngs=rngs)
        self.last = nnx.Linear(16, 1, param_dtype=float, rngs=rngs)

    def __call__(self, x):
        return self.last(self.dropout(jnp.tanh(self.norm(self.first(x)))))


net = Net(nnx.Rngs(0, dropout=1))
# Running statistics and the stream of masks: what is not a parameter is state.
graph, params, state = nnx.split(net, nnx.Param, ...)
# Flax makes running statistics in float32.
state = jax.tree.map(lambda s: s.astype(float) if s.dtype == jnp.float32 else s, state)


def model(params, state, x):
    """Outputs and the new state."""
    net = nnx.merge(graph, params, state)
    return net(x), nnx.split(net, nnx.Param, ...)[2]


x = jax.random.uniform(jax.random.key(1), (200, 2), minval=-1)
y = jnp.sin(3 * x[:, :1]) * x[:, 1:]
square = lambda z, y: jnp.sum((z - y) ** 2, axis=1) / 2
# Samples are coupled by the statistics, and by the one stream that all their masks come from.
problem = pb.Composite(model, square, coupled=True, stateful=True)
rule = pb.step.LevenbergMarquardt(rate=0.3, minimum=1e-3)
opt = pb.NaturalGradientDescent(problem, step=rule)
fit = pb.fit(opt, pb.Stateful(params, state), (x, y), steps=60)

trained = nnx.merge(graph, fit.params.params, fit.params.state)
trained.eval()  # running statistics, no masks
error = jnp.sqrt(jnp.mean((trained(x) - y) ** 2))
h, masks = fit.history, int(trained.dropout.rngs.count[...])
print(f"NNX, batch norm and dropout: loss {h['loss'][0]:.1e} -> {h['loss'][-1]:.1e}")
print(f"{masks} masks were drawn, {h['accepted'].sum()} steps were accepted")
print(f"inference: root mean square error {error:.3f}, that of zero {jnp.sqrt(jnp.mean(y**2)):.3f}")
assert masks == h["accepted"].sum() and error < 0.1
