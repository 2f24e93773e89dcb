r"""The logistic natural gradient in float64, when the margins \(u_i\) are large or far apart. The
source, B.1, takes \(e^{-u_{\max}}\) out of both sides of \(F\delta = \nabla L\):

\[ F = e^{-u_{\max}}\,\tilde X^\top\mathrm{diag}[e^{u_{\max} - u}\varphi^2(u)]\,\tilde X, \qquad
\nabla L = -e^{-u_{\max}}\,\tilde X^\top e^{u_{\max} - u}\varphi(u) . \]

As identities these hold (with \(\tilde X^\top\) in (25), see `typos`). The shift cures a common
offset only, and the source has the proviso that the margins must not differ too much. What loses
the digits is the *spread* of the margins, which grows like \(t\) along the flow if \(N > D\): the
condition number of the weighted rows is squared in \(F\), and singular values that are small for a
good reason are cut off. At a spread of 60 no digit is left; beyond 709 \(e^{u_{\max}-u}\)
overflows, where a shift by \(u_{\min}\) cannot. Never form \(F\):

- \(N \le D\): the weights cancel, \(\delta = -\tilde X^+(1 + e^{-u})\);
- \(N > D\): least squares with rows \(e^{-u_i/2}\varphi(u_i)\,\tilde x_i\) and targets \(1 +
    e^{-u_i}\), by QR with the rows sorted by weight and columns pivoted.

The library does the like (graded rows). All are compared with a thousand decimal digits.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.linalg
from jaxtyping import PRNGKeyArray

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most, equals
from .._figure import COLOURS, open_figure
from .._numbers import distance, generator
from ..ours.saturation import direction, naive, reference, shifted

CASES: dict[str, tuple[int, int, float, float]] = {
    "common offset 350": (5, 8, 350.0, 353.0),
    "common offset 720": (5, 8, 720.0, 723.0),
    "N < D, u in [12, 30]": (5, 8, 12.0, 30.0),
    "N < D, u in [40, 100]": (5, 8, 40.0, 100.0),
    "N > D, u in [28, 100]": (12, 3, 28.0, 100.0),
    "N > D, u in [98, 350]": (12, 3, 98.0, 350.0),
    "N < D, u in [1, 900]": (5, 8, 1.0, 900.0),
}
"""name: samples, columns, smallest and largest margin."""


def _signed(x: np.ndarray, z: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    sign = 2 * y - 1
    return sign[:, None] * x, sign * z


def shifted_down(x: np.ndarray, z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Eqs. (24), (25) with u_min in place of u_max: it cannot overflow."""
    signed, u = _signed(x, z, y)
    scale = np.exp(u.min() - u)
    phi = 1 / (1 + np.exp(-u))
    return -np.linalg.pinv(signed.T @ ((scale * phi**2)[:, None] * signed)) @ (
        signed.T @ (scale * phi)
    )


def weighted(x: np.ndarray, z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Least squares with the roots of the weights, by the singular value decomposition."""
    signed, u = _signed(x, z, y)
    weight = np.exp((u.min() - u) / 2) / (1 + np.exp(-u))
    return -np.linalg.lstsq(weight[:, None] * signed, weight * (1 + np.exp(-u)), rcond=None)[0]


def sorted_qr(x: np.ndarray, z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """X̃⁺(1 + e^-u) if the weights cancel, else QR with heavy rows first and pivoted columns."""
    signed, u = _signed(x, z, y)
    if signed.shape[0] <= signed.shape[1]:
        return -np.linalg.pinv(signed) @ (1 + np.exp(-u))
    order = np.argsort(u)
    signed = signed[order]
    u = u[order]
    weight = np.exp((u[0] - u) / 2) / (1 + np.exp(-u))
    factors: Any = scipy.linalg.qr(weight[:, None] * signed, mode="economic", pivoting=True)
    q, r, columns = factors
    delta = np.empty(signed.shape[1])
    delta[columns] = -scipy.linalg.solve_triangular(r, q.T @ (weight * (1 + np.exp(-u))))
    return delta


METHODS: dict[str, Callable] = {
    "(19), (20) as they stand": naive,
    "(24), (25): shift by u_max": shifted,
    "shift by u_min": shifted_down,
    "weighted least squares": weighted,
    "X̃⁺ or sorted QR": sorted_qr,
    "the library": direction,
}


def errors(x: np.ndarray, z: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """The relative error of every method against the decimal reference."""
    expected = reference(x, z, y)
    found = {}
    with np.errstate(all="ignore"):
        for name, method in METHODS.items():
            try:
                found[name] = distance(method(x, z, y), expected)
            except np.linalg.LinAlgError:  # an infinity or a NaN has reached the factorisation
                found[name] = np.inf
    return {name: value if np.isfinite(value) else np.inf for name, value in found.items()}


def data(
    rng: np.random.Generator, samples: int, columns: int, low: float, high: float
) -> tuple[np.ndarray, ...]:
    """A design, logits with margins in a range, and the right labels in {0, 1}."""
    y = rng.permutation(np.arange(samples) % 2).astype(float)
    u = rng.permutation(np.linspace(low, high, samples))
    return rng.standard_normal((samples, columns)), (2 * y - 1) * u, y


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """The table of cases, then a range of spreads for the figure."""
    rng = generator(key)
    table = {name: errors(*data(rng, *case)) for name, case in CASES.items()}
    spreads = np.array(
        [1.0, 10, 20, 40, 60, 100, 200, 400, 680, 750, 900]
        if budget.full
        else [1.0, 20, 60, 200, 680, 750]
    )
    curves = {
        f"{shape}|{name}": np.array(values)
        for shape, size in (("N < D", (5, 8)), ("N > D", (12, 3)))
        for name, values in _curves(rng, size, spreads).items()
    }
    old = "(24), (25): shift by u_max"
    new = "X̃⁺ or sorted QR"
    down = "shift by u_min"
    rows = [
        at_most("common offset 720: (24), (25)", table["common offset 720"][old], 1e-10),
        at_most("common offset 350: (24), (25)", table["common offset 350"][old], 1e-10),
        at_least(
            "a spread of 60, N < D, u in [40, 100]: (24), (25) are off by",
            table["N < D, u in [40, 100]"][old],
            1e-3,
            Role.CONTROL,
        ),
        at_least(
            "a spread of 252, N > D, u in [98, 350]: (24), (25) are off by",
            table["N > D, u in [98, 350]"][old],
            1e-3,
            Role.CONTROL,
        ),
        at_most(
            "all cases: X̃⁺ or sorted QR",
            max(case[new] for case in table.values()),
            1e-12,
            Role.CONTROL,
        ),
        at_most(
            "all cases: the library",
            max(case["the library"] for case in table.values()),
            1e-11,
            Role.CONTROL,
        ),
        at_least(
            "control, common offset 720: (19), (20) are off by",
            table["common offset 720"]["(19), (20) as they stand"],
            0.5,
            Role.CONTROL,
        ),
        at_most(
            "control, common offset 720: shift by u_min",
            table["common offset 720"][down],
            1e-10,
            Role.CONTROL,
        ),
        equals(
            "control, u in [1, 900]: whether the shift by u_max is finite",
            np.isfinite(table["N < D, u in [1, 900]"][old]),
            0,
            Role.CONTROL,
        ),
    ]
    return Measured(
        tuple(rows),
        {
            "spreads": spreads,
            "table": np.array([list(row.values()) for row in table.values()]),
            **curves,
        },
    )


def _curves(
    rng: np.random.Generator, size: tuple[int, int], spreads: np.ndarray
) -> dict[str, list[float]]:
    found = [errors(*data(rng, *size, 5.0, 5.0 + spread)) for spread in spreads]
    return {name: [one[name] for one in found] for name in METHODS}


def draw(data: Mapping[str, Any]) -> Any:
    """Relative error against the spread of the margins, for more columns than samples and for
    fewer.
    """
    fig, axes = open_figure(columns=2, size=(4.6, 3.8))
    styles = dict(zip(METHODS, ("v", "s", "^", "D", "o", "*"), strict=True))
    for ax, shape in zip(axes, ("N < D", "N > D"), strict=True):
        for i, name in enumerate(METHODS):
            # What is not finite is drawn at the top.
            values = np.clip(
                np.nan_to_num(np.asarray(data[f"{shape}|{name}"]), posinf=3.0), 1e-17, 3.0
            )
            ax.plot(
                data["spreads"],
                values,
                color=COLOURS[i],
                marker=styles[name],
                ms=4,
                lw=1,
                label=name,
                alpha=0.85,
            )
        ax.axvline(709, color="0.6", ls=":", lw=1)
        ax.set(
            xscale="log",
            yscale="log",
            xlabel=r"spread $u_{\max} - u_{\min}$",
            ylabel="relative error",
            title=shape,
            ylim=(1e-17, 10),
        )
    axes[1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return fig


CLAIM = Claim(
    name="depth-stability",
    source="depth",
    place="appendix B.1, eqs. (18) to (25)",
    quotation=(
        "The remaining terms are well-behaved even as u increases, provided that the difference "
        "between elements of u is not too large."
    ),
    statement=(
        "With e^-u_max taken out of the Fisher matrix and of the gradient, the natural gradient "
        "stays numerically stable as the margins grow, provided that they do not differ too much."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    remark=(
        "The proviso fails along the flow if N > D, where the spread grows with t. With a spread "
        "of 60 no digit is right, and beyond 709 the shift itself overflows. Do not form the "
        "Fisher matrix: the weights cancel if N ≤ D, and sorted QR of the weighted rows serves if "
        "N > D."
    ),
    draw=draw,
    key_number="all cases: the library",
)
