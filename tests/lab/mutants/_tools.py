"""What breaks things: each function returns a `Mutant`, which a `MonkeyPatch` undoes."""

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import pullback as pb

PAPERS = "pullback_lab.papers."
Mutant = Callable[[pytest.MonkeyPatch], None]


def found(where: str) -> Any:
    """The object at a dotted path that begins with a module."""
    module, parts = where, []
    while True:
        try:
            value = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _, part = module.rpartition(".")
            parts.insert(0, part)
    for part in parts:
        value = getattr(value, part)
    return value


def instead(where: str, value: Any) -> Mutant:
    """Another object in place of the one at a path."""
    return lambda patch: patch.setattr(where, value)


def made(where: str, make: Callable[[Any], Any]) -> Mutant:
    """What `make` returns for the object at a path, in its place."""
    return lambda patch: patch.setattr(where, make(found(where)))


def scaled(where: str, factor: float = 1.01, shift: float = 0.0) -> Mutant:
    """A function whose real numbers are scaled, and shifted."""

    def change(v):
        real = type(v) is float or jnp.issubdtype(getattr(v, "dtype", bool), jnp.floating)
        return factor * v + shift if real else v

    return made(where, lambda f: lambda *a, **k: jax.tree.map(change, f(*a, **k)))


def called(where: str, **changed: Callable[[Any], Any]) -> Mutant:
    """A function with some keyword arguments changed: functions of what was given (or `None`)."""
    new = lambda k: k | {n: change(k.get(n)) for n, change in changed.items()}
    return made(where, lambda f: lambda *a, **k: f(*a, **new(k)))


def plain(problem, params, batch):
    """The differential, taken for a vector, as a method of `check_invariance`."""
    if batch is None:
        return jax.grad(lambda p: problem.loss(problem.model(p)))(params)
    mean = lambda p: jnp.mean(problem.loss(problem.model(p, batch[0]), batch[1]))
    return jax.grad(mean)(params)


DAMPED = {
    "the natural gradient is damped": called(
        "pullback.natural_gradient", inverse=lambda _: pb.Tikhonov(0.1)
    )
}
CUT = {
    "singular values below 3 % are cut": called(
        "pullback.natural_gradient",
        inverse=lambda given: pb.MoorePenrose(rtol=3e-2, gauge=getattr(given, "gauge", None)),
    )
}
PLAIN = {
    "the plain gradient is followed": called("pullback.check_invariance", method=lambda _: plain)
}
STRONGER = {
    "the damping is half as strong again": made(
        "pullback.Tikhonov", lambda tikhonov: lambda value: tikhonov(1.5 * value)
    )
}
EUCLIDEAN = {
    "the natural flow is Euclidean": instead("pullback.NaturalFlow", lambda **_: pb.EuclideanFlow())
}
NEVER_PROPER = {
    "no point is proper": instead("pullback.Examination.proper", property(lambda self: False))
}
