r"""Clocks: which variable the integrator steps in.

`Time` is \(t\). `LogTime` is \(s = \log(1 + t - t_0)\), a change of time: \(d\theta/ds = -e^{s}
v(\theta)\) follows the same curve, and \(t\) is known exactly at every step. It suits flows that
slow down as \(1/t\). On separable problems \(L \sim 1/t\), so that \(e^{s} L\) is of order one and
\(-e^{s + \log L}\,\nabla \log L\) (see `EuclideanFlow`) is the flow of \(\log L\) up to a bounded
factor: \(t = 10^{100}\) is \(s = 230\).
"""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._base.show import settings
from .._base.types import Scalar


class AbstractClock(eqx.Module):
    """An increasing change of time s(t - t0), with s(0) = 0."""

    def __repr__(self) -> str:
        return settings(self)

    @abc.abstractmethod
    def read(self, elapsed: Array) -> Array:
        """Return s, the reading of the clock at a time.

        **Arguments:**

        - `elapsed`: t - t0 ≥ 0.
        """

    @abc.abstractmethod
    def elapsed(self, reading: Array) -> Array:
        """Return t - t0 at a reading of the clock.

        **Arguments:**

        - `reading`: s.
        """

    @abc.abstractmethod
    def log_rate(self, reading: Scalar) -> Scalar:
        """Return log dt/ds at a reading of the clock.

        **Arguments:**

        - `reading`: s.
        """


class Time(AbstractClock):
    """The clock s = t - t0, the time itself; the default of `flow`."""

    def read(self, elapsed):
        return elapsed

    def elapsed(self, reading):
        return reading

    def log_rate(self, reading):
        return jnp.zeros_like(reading)


class LogTime(AbstractClock):
    """The clock s = log(1 + t - t0), for flows that slow down: up to t = 1e100 and beyond.

    ```python
    clock, kind = pb.LogTime(), pb.EuclideanFlow()
    sol = pb.flow(problem, params, (x, y), t1=1e6, kind=kind, clock=clock)
    ```
    """

    def read(self, elapsed):
        return jnp.log1p(elapsed)

    def elapsed(self, reading):
        return jnp.expm1(reading)

    def log_rate(self, reading):
        return reading
