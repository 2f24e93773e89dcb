"""Flax linen: `model.apply` is the model, its variables are the parameters."""

import flax.linen as nn
import jax
import jax.numpy as jnp

import pullback as pb

jax.config.update("jax_enable_x64", True)


class Net(nn.Module):
    """Two layers."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(1, param_dtype=float)(nn.tanh(nn.Dense(16, param_dtype=float)(x)))


x = jax.random.uniform(jax.random.key(1), (200, 2), minval=-1)
y = jnp.sin(3 * x[:, :1]) * x[:, 1:]
params = Net().init(jax.random.key(0), x)

problem = pb.Composite(Net().apply, lambda z, y: jnp.sum((z - y) ** 2, axis=1) / 2)
opt = pb.NaturalGradientDescent(problem, step=pb.step.LevenbergMarquardt())
fit = pb.fit(opt, params, (x, y), steps=30)
h = fit.history
print(f"Flax linen: loss {h['loss'][0]:.1e} -> {h['loss_after'][-1]:.1e}, rank {h['rank'][-1]}")
assert h["loss_after"][-1] < 1e-3
