r"""Error control in the metric norm: a step is accepted if \(\lVert e \rVert_G = \lVert A e \rVert
\le\) `tolerance`, \(e\) the error estimate of the step.

\(\lVert e \rVert_G\) does not depend on the parametrisation (and directions that do not move the
model do not count), while the usual `rtol · |θ|`, coordinate by coordinate, does.
"""

from collections.abc import Callable
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax.numpy as jnp
import optimistix as optx

from .._base.checks import positive
from .._rows.pullback import at_point
from ..inverse._base import MoorePenrose
from ..solver import SVD


class MetricControl(eqx.Module):
    """Control the error of each step in the metric norm.

    **Arguments:**

    - `tolerance`: the bound on ‖e‖_G per step; for a Fisher metric ‖e‖²/2 is in nats.
    """

    tolerance: float

    def __check_init__(self):
        positive("MetricControl", "tolerance", self.tolerance)


class MetricController(dfx.AbstractAdaptiveStepSizeController):
    """`diffrax.PIDController` on A e instead of e."""

    inner: dfx.PIDController
    rtol: Any
    atol: Any
    norm: Callable = eqx.field(static=True)

    def __init__(self, tolerance: Any, dtmin: Any):
        self.inner = dfx.PIDController(
            rtol=0.0,
            atol=tolerance,
            norm=optx.two_norm,
            dtmin=dtmin,
            force_dtmin=False,
            pcoeff=0.3,
            icoeff=0.4,
        )
        self.rtol, self.atol, self.norm = tolerance, tolerance, optx.two_norm

    def wrap(self, direction):
        return self

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        return self.inner.init(terms, t0, t1, y0, dt0, args, func, error_order)

    def adapt_step_size(
        self, t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state
    ):
        metric = at_point(args.problem, args.params(y0), args.batch, MoorePenrose(), SVD())
        assert y_error is not None
        error = metric.mv(y_error.astype(metric.dtype))
        zero = jnp.zeros_like(error)
        return self.inner.adapt_step_size(
            t0, t1, zero, zero, args, error, error_order, controller_state
        )
