"""Flax nnx, with its own optimiser: `nnx.split` makes a function of the parameters, `nnx.Optimizer`
takes the Optax face.
"""

import jax
import jax.numpy as jnp
from flax import nnx

import pullback as pb

jax.config.update("jax_enable_x64", True)

linear = lambda m, n, seed: nnx.Linear(m, n, param_dtype=float, rngs=nnx.Rngs(seed))
model = nnx.Sequential(linear(2, 16, 0), jnp.tanh, linear(16, 1, 1))
x = jax.random.uniform(jax.random.key(1), (200, 2), minval=-1)
y = jnp.sin(3 * x[:, :1]) * x[:, 1:]

graph, _ = nnx.split(model)
square = lambda z, y: jnp.sum((z - y) ** 2, axis=1) / 2
problem = pb.Composite(lambda params, x: nnx.merge(graph, params)(x), square)
opt = pb.NaturalGradientDescent(problem, step=pb.step.LevenbergMarquardt())
optimiser = nnx.Optimizer(model, pb.as_optax(opt), wrt=nnx.Param)

for _ in range(30):
    loss, gradient = nnx.value_and_grad(lambda model: jnp.mean(square(model(x), y)))(model)
    optimiser.update(model, gradient, batch=(x, y))

print(f"Flax nnx: loss {loss:.1e} after 30 steps")
assert loss < 1e-3
