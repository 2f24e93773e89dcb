"""An existing Optax loop, changed in two lines: the optimiser, and `batch=` in the update."""

import jax
import jax.numpy as jnp
import optax

import pullback as pb

jax.config.update("jax_enable_x64", True)
x = jax.random.uniform(jax.random.key(1), (200, 2), minval=-1)
y = jnp.sin(3 * x[:, :1]) * x[:, 1:]
params = (jax.random.normal(jax.random.key(0), (2, 16)), jnp.zeros(16), jnp.zeros((16, 1)))
model = lambda p, x: jnp.tanh(x @ p[0] + p[1]) @ p[2]
square = lambda z, y: jnp.sum((z - y) ** 2, axis=1) / 2
opt = pb.NaturalGradientDescent(pb.Composite(model, square), step=pb.step.LevenbergMarquardt())
tx = pb.as_optax(opt)  # was tx = optax.adam(1e-2)


@jax.jit
def step(params, state):
    loss, gradient = jax.value_and_grad(lambda p: jnp.mean(square(model(p, x), y)))(params)
    updates, state = tx.update(gradient, state, params, batch=(x, y))  # batch= is new
    return optax.apply_updates(params, updates), state, loss


state = tx.init(params)
for _ in range(30):
    params, state, loss = step(params, state)
print(f"Optax: loss {loss:.1e} after 30 steps, rank {optax.tree.get(state, 'record').rank}")
