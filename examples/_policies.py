"""Policies and values: networks, episodes, advantages, and three ways to improve a policy."""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _environments import Environment, acrobot, cartpole, pendulum
from jax.flatten_util import ravel_pytree

import pullback as pb


class Setting(NamedTuple):
    """How a task is learned."""

    task: Environment
    environments: int
    steps: int
    """Of each environment in an iteration."""
    discount: float
    divergence: float
    """The KL divergence of the first step."""
    total: int
    falls: bool = False
    """Whether the divergence falls linearly, to zero at the end."""
    damping: float = 0.3
    """That of the fit of the values."""
    log_scale: float = 0.0
    """Of real actions, at the start."""
    trace: float = 0.95


SETTINGS = {
    "CartPole": Setting(cartpole, 8, 125, 0.99, 0.02, 60_000),
    "Acrobot": Setting(acrobot, 16, 125, 0.99, 0.01, 100_000),
    "Pendulum": Setting(
        pendulum, 5, 200, 0.95, 0.02, 100_000, falls=True, damping=0.1, log_scale=-0.5
    ),
}
# With these dampings a few products of A take less time than a factorisation of G.
SOLVER = pb.solver.Krylov()


class Data(NamedTuple):
    """What a policy did: one row per step of an environment."""

    seen: jax.Array
    action: jax.Array
    log_p: jax.Array
    advantage: jax.Array
    target: jax.Array


def network(key, widths, last=1.0):
    """The weights of a tanh network; those of its last layer are scaled."""
    params = []
    for k, (m, n) in enumerate(itertools.pairwise(widths)):
        scale = last if k == len(widths) - 2 else 1.0
        w = jax.random.orthogonal(jax.random.fold_in(key, k), max(m, n))[:m, :n]
        params.append((scale * w, jnp.zeros(n)))
    return params


def mlp(params, x):
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    return x @ params[-1][0] + params[-1][1]


def logits(params, x):
    return mlp(params["net"], x)


def gaussian(params, x):
    mean = mlp(params["net"], x)[..., 0]
    return {"mean": mean, "log_scale": jnp.broadcast_to(params["log_scale"], mean.shape)}


def value(params, x):
    return mlp(params, x)[..., 0]


def policy_of(task, key, log_scale=0.0):
    """The model, its metric, and parameters to start from."""
    size = task.observe(task.reset(key)).size
    widths = (size, 32, 32, task.actions or 1)
    params = {"net": network(key, widths, 0.01)}
    if task.actions is None:
        start = params | {"log_scale": jnp.asarray(log_scale)}
        return gaussian, pb.metric.GaussianMeanScale(), start
    return logits, pb.metric.Categorical(), params


def log_p(outputs, action):
    """The logarithms of the probabilities of actions."""
    if isinstance(outputs, dict):
        gap = (action - outputs["mean"]) * jnp.exp(-outputs["log_scale"])
        return -(gap**2) / 2 - outputs["log_scale"]
    chosen = jnp.take_along_axis(jax.nn.log_softmax(outputs), action[..., None], axis=-1)
    return chosen[..., 0]


def surrogate(outputs, targets):
    """Minus the advantage of the actions, with importance weights; one number per step."""
    action, advantage, old = targets
    return -advantage * jnp.exp(log_p(outputs, action) - old)


def rollout(task, model, params, values, state, key, steps, discount, trace):
    """Some steps of several environments, with generalised advantages; the environments after."""
    look = jax.vmap(task.observe)

    def one(carry, key):
        states, age = carry
        draw, again = jax.random.split(key)
        seen = look(states)
        outputs = model(params, seen)
        if task.actions is None:
            noise = jax.random.normal(draw, age.shape)
            action = outputs["mean"] + jnp.exp(outputs["log_scale"]) * noise
        else:
            action = jax.random.categorical(draw, outputs)
        moved, reward, ended = jax.vmap(task.step)(states, action)
        age = age + 1
        over = ended | (age >= task.limit)
        fresh = jax.vmap(task.reset)(jax.random.split(again, len(age)))
        row = (seen, action, log_p(outputs, action), reward, ended, over, look(moved))
        states = jnp.where(over[:, None], fresh, moved)
        return (states, jnp.where(over, 0, age)), row

    state, rows = jax.lax.scan(one, state, jax.random.split(key, steps))
    seen, action, old, reward, ended, over, after = rows
    here, there = value(values, seen), value(values, after)
    gap = reward + discount * jnp.where(ended, 0.0, there) - here

    def back(sum_, row):
        gap, over = row
        sum_ = gap + discount * trace * jnp.where(over, 0.0, sum_)
        return sum_, sum_

    advantage = jax.lax.scan(back, jnp.zeros(gap.shape[1]), (gap, over), reverse=True)[1]
    flat = lambda x: x.reshape(-1, *x.shape[2:])
    scaled = (advantage - jnp.mean(advantage)) / (jnp.std(advantage) + 1e-8)
    return Data(*map(flat, (seen, action, old, scaled, advantage + here))), state


def returns(task, model, params, key, episodes=50):
    """The mean return of episodes in which the most probable action is taken."""

    def one(carry, _):
        states, alive, total = carry
        outputs = model(params, jax.vmap(task.observe)(states))
        action = outputs["mean"] if isinstance(outputs, dict) else jnp.argmax(outputs, axis=-1)
        states, reward, ended = jax.vmap(task.step)(states, action)
        return (states, alive & ~ended, total + jnp.where(alive, reward, 0.0)), None

    states = jax.vmap(task.reset)(jax.random.split(key, episodes))
    start = states, jnp.ones(episodes, bool), jnp.zeros(episodes)
    return jnp.mean(jax.lax.scan(one, start, None, length=task.limit)[0][2])


def natural_step(model, metric):
    """The step that spends the divergence asked for."""
    problem = pb.Composite(model, surrogate, metric)

    def step(params, state, data, key, bound):
        batch = data.seen, (data.action, data.advantage, data.log_p)
        rule = pb.step.TrustRegion(divergence=bound, extend=True, adapt=False)
        opt = pb.NaturalGradientDescent(problem, step=rule, inverse=pb.Tikhonov(0.1), solver=SOLVER)
        params, _, record = opt.step(params, opt.init(params), batch)
        return params, state, jnp.where(record.accepted, record.divergence, 0.0)

    return lambda params: 0, step


def divergence(metric, model, params, old, seen):
    """The mean divergence of two policies on some states."""
    return jnp.mean(jax.vmap(metric.divergence)(model(params, seen), model(old, seen)))


def conjugate_step(model, metric):
    """TRPO as published: ten conjugate gradients on Fisher products, then backtracking."""

    def step(params, state, data, key, bound):
        flat, tree = ravel_pytree(params)
        batch = data.action, data.advantage, data.log_p
        loss = lambda x: jnp.mean(surrogate(model(tree(x), data.seen), batch))
        spent = lambda x: divergence(metric, model, tree(x), params, data.seen)
        g = jax.grad(loss)(flat)
        product = lambda v: jax.jvp(jax.grad(spent), (flat,), (v,))[1] + 1e-1 * v
        d = jax.scipy.sparse.linalg.cg(product, g, maxiter=10)[0]
        d = d * jnp.sqrt(2 * bound / jnp.maximum(d @ product(d), 1e-12))

        def shorter(carry):
            return carry[0] * 0.8, carry[1] + 1

        def bad(carry):
            x = flat - carry[0] * d
            return ((spent(x) > bound) | (loss(x) >= loss(flat))) & (carry[1] < 10)

        t, tried = jax.lax.while_loop(bad, shorter, (jnp.asarray(1.0), 0))
        x = jnp.where(tried < 10, flat - t * d, flat)
        return tree(x), state, spent(x)

    return lambda params: 0, step


def clipped_step(model, metric):
    """PPO: Adam on the clipped surrogate, ten passes in batches of 64."""
    adam = optax.adam(3e-4)

    def loss(params, data):
        outputs = model(params, data.seen)
        ratio = jnp.exp(log_p(outputs, data.action) - data.log_p)
        least = jnp.minimum(ratio * data.advantage, jnp.clip(ratio, 0.8, 1.2) * data.advantage)
        return -jnp.mean(least)

    def step(params, state, data, key, bound):
        old, size = params, len(data.seen)
        orders = [jax.random.permutation(k, size) for k in jax.random.split(key, 10)]
        index = jnp.concatenate([order[: size - size % 64].reshape(-1, 64) for order in orders])

        def one(carry, rows):
            params, state = carry
            part = jax.tree.map(lambda x: x[rows], data)
            updates, state = adam.update(jax.grad(loss)(params, part), state)
            return (optax.apply_updates(params, updates), state), None

        (params, state), _ = jax.lax.scan(one, (params, state), index)
        return params, state, divergence(metric, model, params, old, data.seen)

    return adam.init, step


def value_step(passes=3, damping=0.3):
    """Damped natural gradient steps on the squared error of the value."""
    problem = pb.Composite(value, lambda z, y: (z - y) ** 2 / 2)
    inverse = pb.Tikhonov(damping)
    opt = pb.NaturalGradientDescent(problem, step=0.7, inverse=inverse, solver=SOLVER)

    def step(params, state, data):
        one = lambda carry, _: (opt.step(*carry, (data.seen, data.target))[:2], None)
        return jax.lax.scan(one, (params, state), None, length=passes)[0]

    return opt.init, step


METHODS = {
    "natural gradient": natural_step,
    "conjugate gradients": conjugate_step,
    "PPO": clipped_step,
}


@functools.cache
def runner(name, method):
    """A start for each seed, and an iteration; compiled once for all seeds."""
    chosen = SETTINGS[name]
    task, count, steps = chosen.task, chosen.environments, chosen.steps
    model, metric, _ = policy_of(task, jax.random.key(0))
    init, improve = METHODS[method](model, metric)
    value_init, fit_value = value_step(damping=chosen.damping)

    @jax.jit
    def start(key):
        params = policy_of(task, key, chosen.log_scale)[2]
        size = task.observe(task.reset(key)).size
        values = network(jax.random.fold_in(key, 1), (size, 32, 32, 1))
        worlds = jax.vmap(task.reset)(jax.random.split(key, count)), jnp.zeros(count, int)
        return params, init(params), values, value_init(values), worlds

    @jax.jit
    def iteration(carry, key, bound):
        params, state, values, value_state, worlds = carry
        one, two, three = jax.random.split(key, 3)
        data, worlds = rollout(
            task, model, params, values, worlds, one, steps, chosen.discount, chosen.trace
        )
        params, state, spent = improve(params, state, data, two, bound)
        values, value_state = fit_value(values, value_state, data)
        score = returns(task, model, params, three)
        return (params, state, values, value_state, worlds), (score, spent)

    return start, iteration, count * steps


def train(name, method, seed, total=None):
    """Environment steps, returns, and divergences spent and asked for."""
    start, iteration, size = runner(name, method)
    key, rows, chosen = jax.random.key(seed), [], SETTINGS[name]
    carry, count = start(key), (total or chosen.total) // size
    for k in range(count):
        bound = chosen.divergence * (1 - k / count if chosen.falls else 1.0)
        carry, row = iteration(carry, jax.random.fold_in(key, 1000 + k), jnp.asarray(bound))
        rows.append((size * (k + 1), *map(float, row), bound))
    return np.array(rows).T
