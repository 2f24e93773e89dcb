r"""Error control in the metric norm: a step is accepted if \(\lVert e \rVert_G = \lVert A e \rVert
\le\) `tolerance`, with \(e\) the error estimate of the step.

\(\lVert e \rVert_G\) does not depend on the parametrisation, and directions that do not move the
model do not count. The usual `rtol · |θ|`, coordinate by coordinate, depends on it.
"""

from collections.abc import Callable

import diffrax as dfx
import equinox as eqx
import jax.numpy as jnp
import optimistix as optx

from .._base.checks import positive
from .._base.show import settings
from .._base.types import Scalar
from .._rows.rows import rows_at


class MetricControl(eqx.Module):
    """Control the error of each step in the metric norm: `flow(control=MetricControl(1e-6))`.

    **Arguments:**

    - `tolerance`: the bound on ‖e‖_G per step; for a Fisher metric ‖e‖²/2 is in nats.
    """

    tolerance: float | Scalar

    def __repr__(self) -> str:
        return settings(self)

    def __check_init__(self):
        positive("MetricControl", "tolerance", self.tolerance, example="MetricControl(1e-6)")


class MetricController(dfx.AbstractAdaptiveStepSizeController):
    """`diffrax.PIDController` on A e instead of e."""

    inner: dfx.PIDController
    rtol: Scalar
    atol: Scalar
    norm: Callable = eqx.field(static=True)

    def __init__(self, tolerance: Scalar, dtmin: Scalar):
        self.inner = dfx.PIDController(
            rtol=0.0,
            atol=tolerance,
            norm=optx.two_norm,
            dtmin=dtmin,
            force_dtmin=False,
            pcoeff=0.3,
            icoeff=0.4,
        )
        self.rtol = tolerance
        self.atol = tolerance
        self.norm = optx.two_norm

    def wrap(self, direction):
        return self

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        return self.inner.init(terms, t0, t1, y0, dt0, args, func, error_order)

    def adapt_step_size(
        self, t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state
    ):
        assert y_error is not None
        rows = rows_at(args.objective, args.params(y0))
        error = rows.mv(y_error.astype(rows.dtype))
        # With states of zero the tolerance of the inner controller is `atol` alone.
        zero = jnp.zeros_like(error)
        return self.inner.adapt_step_size(
            t0, t1, zero, zero, args, error, error_order, controller_state
        )
