r"""Reference solutions without a closed form in elementary functions, by NumPy alone.

Burgers, \(u_t + u u_x = \nu u_{xx}\) with \(u(0, x) = -\sin\pi x\) on [-1, 1], by the Cole-Hopf
transformation (Basdevant et al., 1986): with \(h = \sqrt{4\nu t}\) and \(f(y) = e^{-\cos(\pi
y)/(2\pi\nu)}\),

\[ u(t, x) = -\frac{\int \sin(\pi(x - hz))\,f(x - hz)\,e^{-z^2}\,dz}{\int f(x -
hz)\,e^{-z^2}\,dz} . \]

Both integrands are entire and decay like a Gaussian, so the trapezoidal rule converges faster than
any power of its width.

Allen-Cahn, \(u_t = 10^{-4}u_{xx} + 5(u - u^3)\) with \(u(0, x) = x^2\cos\pi x\), periodic on [-1,
1]: Fourier modes in space, and a fourth-order Runge-Kutta method in time on \(e^{-tL}\hat u\), \(L
= -10^{-4}k^2 + 5\) the linear part.
"""

import numpy as np

REACH, NODES, PIECE = 24.0, 2401, 500
"""The interval of the trapezoidal rule, its nodes, and how many points are done at once."""

COARSE = 512
"""How many places of the grid in x are returned."""


def burgers(points: np.ndarray, viscosity: float) -> np.ndarray:
    """Return u at points (t, x)."""
    z = np.linspace(-REACH, REACH, NODES)
    values = []
    for piece in np.array_split(np.asarray(points, float), max(1, len(points) // PIECE)):
        t, x = piece.T
        y = x[:, None] - np.sqrt(4 * viscosity * t)[:, None] * z[None, :]
        exponent = -np.cos(np.pi * y) / (2 * np.pi * viscosity) - z[None, :] ** 2
        weight = np.exp(exponent - exponent.max(axis=1, keepdims=True))
        values.append(-np.sum(np.sin(np.pi * y) * weight, axis=1) / np.sum(weight, axis=1))
    return np.concatenate(values)


def allen_cahn(
    modes: int = 4096, steps: int = 1000, kept: int = 20
) -> tuple[np.ndarray, np.ndarray]:
    """Return points (t, x) on a grid, and u there.

    The initial value has a kink at x = ±1, which diffusion smooths: the root mean square error is
    that of its Fourier series.
    """
    x = -1 + 2 * np.arange(modes) / modes
    wave = np.pi * np.fft.rfftfreq(modes, 1 / modes)
    linear, dt = 5 - 1e-4 * wave**2, 1 / steps
    half = np.exp(linear * dt / 2)
    slope = lambda v: np.fft.rfft(-5 * np.fft.irfft(v, modes) ** 3)
    v = np.fft.rfft(x**2 * np.cos(np.pi * x))
    points, values = [], []
    for step in range(1, steps + 1):
        a = slope(v)
        b = slope(half * (v + dt / 2 * a))
        c = slope(half * v + dt / 2 * b)
        d = slope(half**2 * v + dt * half * c)
        v = half**2 * (v + dt / 6 * a) + dt / 3 * half * (b + c) + dt / 6 * d
        if step % (steps // kept) == 0:
            points.append(np.stack([np.full(modes, step * dt), x], axis=1)[:: modes // COARSE])
            values.append(np.fft.irfft(v, modes)[:: modes // COARSE])
    return np.concatenate(points), np.concatenate(values)
