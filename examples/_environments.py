"""CartPole, Acrobot and Pendulum with the dynamics and rewards of Gymnasium, in JAX."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Environment(NamedTuple):
    """A task: `reset(key)`, `step(state, action) -> state, reward, terminated`."""

    name: str
    reset: Callable
    step: Callable
    observe: Callable
    limit: int
    """After how many steps an episode is cut off."""
    actions: int | None
    """The number of actions; `None` for one real action."""


def _pole_step(s, action):
    x, v, angle, speed = s
    force, cos, sin = jnp.where(action == 1, 10.0, -10.0), jnp.cos(angle), jnp.sin(angle)
    pushed = (force + 0.05 * speed**2 * sin) / 1.1
    turn = (9.8 * sin - cos * pushed) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    push = pushed - 0.05 * turn * cos / 1.1
    s = jnp.array([x + 0.02 * v, v + 0.02 * push, angle + 0.02 * speed, speed + 0.02 * turn])
    return s, 1.0, (jnp.abs(s[0]) > 2.4) | (jnp.abs(s[2]) > 12 * jnp.pi / 180)


cartpole = Environment(
    "CartPole",
    lambda key: jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05),
    _pole_step,
    lambda s: s * jnp.array([1.0, 1.0, 5.0, 1.0]),
    500,
    2,
)


def _acrobot_rate(s, torque):
    """The equations of motion of two links of length and mass 1."""
    a, b, u, v = s
    d1 = 0.25 + 1.25 + jnp.cos(b) + 2.0
    d2 = 0.25 + 0.5 * jnp.cos(b) + 1.0
    phi2 = 4.9 * jnp.cos(a + b - jnp.pi / 2)
    phi1 = (-0.5 * v * v - u * v) * jnp.sin(b) + 14.7 * jnp.cos(a - jnp.pi / 2) + phi2
    top = torque + d2 / d1 * phi1 - 0.5 * u * u * jnp.sin(b) - phi2
    second = top / (1.25 - d2 * d2 / d1)
    return jnp.array([u, v, -(d2 * second + phi1) / d1, second])


def _acrobot_step(s, action):
    torque, dt = action.astype(s.dtype) - 1.0, 0.2
    k1 = _acrobot_rate(s, torque)
    k2 = _acrobot_rate(s + dt / 2 * k1, torque)
    k3 = _acrobot_rate(s + dt / 2 * k2, torque)
    k4 = _acrobot_rate(s + dt * k3, torque)
    s = s + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    angles = (s[:2] + jnp.pi) % (2 * jnp.pi) - jnp.pi
    fast = jnp.array([4.0, 9.0]) * jnp.pi
    s = jnp.concatenate([angles, jnp.clip(s[2:], -fast, fast)])
    up = -jnp.cos(s[0]) - jnp.cos(s[0] + s[1]) > 1.0
    return s, jnp.where(up, 0.0, -1.0), up


def _acrobot_look(s):
    turned = [jnp.cos(s[0]), jnp.sin(s[0]), jnp.cos(s[1]), jnp.sin(s[1]), s[2] / 4, s[3] / 9]
    return jnp.stack(turned)


acrobot = Environment(
    "Acrobot",
    lambda key: jax.random.uniform(key, (4,), minval=-0.1, maxval=0.1),
    _acrobot_step,
    _acrobot_look,
    500,
    3,
)


def _pendulum_step(s, action):
    angle, speed = s
    torque = jnp.clip(2.0 * action, -2.0, 2.0)
    off = (angle + jnp.pi) % (2 * jnp.pi) - jnp.pi
    cost = off**2 + 0.1 * speed**2 + 0.001 * torque**2
    speed = jnp.clip(speed + 0.05 * (15.0 * jnp.sin(angle) + 3.0 * torque), -8.0, 8.0)
    return jnp.stack([angle + 0.05 * speed, speed]), -cost, jnp.asarray(False)


def _pendulum_reset(key):
    wide = jnp.array([jnp.pi, 1.0])
    return jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0) * wide


pendulum = Environment(
    "Pendulum",
    _pendulum_reset,
    _pendulum_step,
    lambda s: jnp.array([jnp.cos(s[0]), jnp.sin(s[0]), s[1] / 4]),
    200,
    None,
)
