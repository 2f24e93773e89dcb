"""Equinox: the model is the pytree of parameters."""

import equinox as eqx
import jax
import jax.numpy as jnp

import pullback as pb

jax.config.update("jax_enable_x64", True)

mlp = eqx.nn.MLP(2, 1, width_size=16, depth=2, activation=jnp.tanh, key=jax.random.key(0))
x = jax.random.uniform(jax.random.key(1), (200, 2), minval=-1)
y = jnp.sin(3 * x[:, :1]) * x[:, 1:]

problem = pb.Composite(
    lambda model, x: jax.vmap(model)(x), lambda z, y: jnp.sum((z - y) ** 2, axis=1) / 2
)
opt = pb.NaturalGradientDescent(problem, step=pb.step.LevenbergMarquardt())
fit = pb.fit(opt, mlp, (x, y), steps=30)

h = fit.history
print(f"Equinox: loss {h['loss'][0]:.1e} -> {h['loss_after'][-1]:.1e}, rank {h['rank'][-1]}")
assert h["loss_after"][-1] < 1e-5
