"""No framework: parameters are a pytree of arrays, the loop is yours, `step` is a pure function."""

import jax
import jax.numpy as jnp

import pullback as pb

jax.config.update("jax_enable_x64", True)
x = jax.random.uniform(jax.random.key(1), (200, 2), minval=-1)
y = jnp.sin(3 * x[:, :1]) * x[:, 1:]
normal = jax.random.normal(jax.random.key(0), (2, 16))
params = [(normal, jnp.zeros(16)), (jnp.zeros((16, 1)), jnp.zeros(1))]


def model(params, x):
    (w, b), (v, c) = params
    return jnp.tanh(x @ w + b) @ v + c


problem = pb.Composite(model, lambda z, y: jnp.sum((z - y) ** 2, axis=1) / 2)
opt = pb.NaturalGradientDescent(problem, step=pb.step.LevenbergMarquardt())
step = jax.jit(opt.step)
state = opt.init(params)
for _ in range(30):
    params, state, record = step(params, state, (x, y))
print(f"Plain pytree: loss {record.loss_after:.1e}, rank {record.rank}, λ = {record.damping:.0e}")
assert record.loss_after < 1e-4
