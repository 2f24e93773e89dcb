"""The metrics, losses and models in closed form, for any kind of number.

`lib` is `MP` (arbitrary precision) or `Floats(dtype)` (NumPy); arrays of the former are NumPy
arrays of mpmath numbers. Imports nothing of pullback, nor JAX.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from mpmath import mp, mpc, mpf

from .problem import Structure, Values

LARGEST_BITS = 20_000
"""The logarithm of the largest argument of a transcendental function: π is needed to as many."""


class TooManyDigits(Exception):
    """The reference would need more digits than it may have (`reference.MOST`, `LARGEST_BITS`)."""


def _transcendental(function: Callable[[Any], Any]) -> Any:
    """Return a function entry by entry, which is refused for arguments beyond all bounds."""

    def bounded(x):
        if x != 0 and mp.mag(x) > LARGEST_BITS:
            raise TooManyDigits
        return function(x)

    return staticmethod(np.frompyfunc(bounded, 1, 1))


class MP:
    """Functions of mpmath numbers, entry by entry."""

    @staticmethod
    def array(x: Any) -> np.ndarray:
        """Return exact mpmath numbers from floats."""
        x = np.asarray(x)
        out = np.empty(x.shape, dtype=object)
        for place in np.ndindex(*x.shape):
            value = x[place]
            if x.dtype.kind == "c":
                out[place] = mpc(float(value.real), float(value.imag))
            else:
                out[place] = mpf(float(value))
        return out

    @staticmethod
    def zeros(*shape: int) -> np.ndarray:
        """Return zeros."""
        out = np.empty(shape, dtype=object)
        out[...] = mpf(0)
        return out

    real = staticmethod(np.frompyfunc(mp.re, 1, 1))
    imag = staticmethod(np.frompyfunc(mp.im, 1, 1))
    conj = staticmethod(np.frompyfunc(mp.conj, 1, 1))
    log1p = staticmethod(np.frompyfunc(mp.log1p, 1, 1))
    exp, tanh, sin, cos = map(_transcendental, (mp.exp, mp.tanh, mp.sin, mp.cos))
    sigmoid = _transcendental(lambda x: 1 / (1 + mp.exp(-x)))
    softplus = _transcendental(lambda x: mp.log1p(mp.exp(x)))


class Floats:
    """The same with NumPy numbers."""

    def __init__(self, dtype: Any):
        self.dtype = np.dtype(dtype)

    def array(self, x: Any) -> np.ndarray:
        """Return numbers in the dtype."""
        return np.asarray(x).astype(self.dtype)

    def zeros(self, *shape: int) -> np.ndarray:
        """Return zeros."""
        return np.zeros(shape, self.dtype)

    real, imag, conj = map(staticmethod, (np.real, np.imag, np.conj))
    exp, log1p, tanh, sin, cos = map(staticmethod, (np.exp, np.log1p, np.tanh, np.sin, np.cos))

    @staticmethod
    def sigmoid(x: np.ndarray) -> np.ndarray:
        """Return the logistic function."""
        return 1 / (1 + np.exp(-x))

    @staticmethod
    def softplus(x: np.ndarray) -> np.ndarray:
        """Return log(1 + e^x)."""
        return np.logaddexp(x, np.zeros_like(x))


def activation(name: str, h: np.ndarray, lib: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return f(h) and f'(h)."""
    one = h * 0 + 1
    if name == "tanh":
        t = lib.tanh(h)
        return t, one - t * t
    if name == "softplus":
        return lib.softplus(h), lib.sigmoid(h)
    if name == "sin":
        return lib.sin(h), lib.cos(h)
    if name == "square":
        return h * h, 2 * h
    if name == "cube":
        return h * h * h, 3 * h * h
    assert name == "exp", name
    e = lib.exp(h)
    return e, e


def softmax(z: np.ndarray, lib: Any) -> np.ndarray:
    """Return the probabilities of logits."""
    e = lib.exp(z - max(z))
    return e / e.sum()


def offsets(structure: Structure) -> dict[str, list[tuple[int, complex]]]:
    """Return where the parts of each moving leaf begin in the flat vector, and their units."""
    places, start = {}, 0
    for leaf in structure.moving:
        places[leaf.name] = [(start, 1)]
        if leaf.kind == "complex":
            places[leaf.name].append((start + leaf.size // 2, 1j))
        start += leaf.size
    return places


def floats(structure: Structure, dtype: str) -> "Floats":
    """Return the numbers of NumPy with which a model computes."""
    long = {"float64": "complex128", "float32": "complex64"}
    return Floats(long[dtype] if structure.is_complex else dtype)


def _parted(op: str, h: np.ndarray, t: np.ndarray, lib: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return a function of complex numbers that is not holomorphic, and its tangents."""
    a, b, da, db = lib.real(h), lib.imag(h), lib.real(t), lib.imag(t)
    if op == "real":
        return a, da
    if op == "abs2":
        return a * a + b * b, 2 * (a[:, None] * da + b[:, None] * db)
    if op == "conj":
        return lib.conj(h), lib.conj(t)
    size = t.shape[1]
    return np.stack([a, b], axis=1).ravel(), np.stack([da, db], axis=1).reshape(-1, size)


def outputs(
    structure: Structure, params: dict[str, np.ndarray], x: np.ndarray | None, lib: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return z (q,) and J (q, P) of one sample, tangents propagated forward."""
    start, size = offsets(structure), structure.size
    h = lib.zeros(structure.inputs) + 1 if x is None else x
    t = lib.zeros(len(h), size)
    for op, *args in structure.program:
        if op == "affine":
            names, bias = args
            w = sum(params[name] for name in names)
            t = w @ t
            for name in names:
                for offset, unit in start[name]:
                    for i in range(w.shape[0]):
                        place = offset + i * w.shape[1]
                        t[i, place : place + w.shape[1]] += unit * h
            h = w @ h
            if bias is not None:
                h = h + params[bias]
                for offset, unit in start[bias]:
                    for i in range(len(h)):
                        t[i, offset + i] += unit
        elif op == "act":
            h, slope = activation(args[0], h, lib)
            t = slope[:, None] * t
        elif op == "scale":
            theta = params[args[0]]
            t = theta[:, None] * t
            for offset, unit in start[args[0]]:
                for i in range(len(h)):
                    t[i, offset + i] += unit * h[i]
            h = theta * h
        elif op == "powers":
            h = np.concatenate([h * 0 + 1, *(h**k for k in range(1, args[0] + 1))])
            t = lib.zeros(len(h), size)
        elif op == "softmax":
            p = softmax(h, lib)
            t = p[:, None] * (t - (p @ t)[None, :])
            h = p
        elif op == "shared":
            power, *names = args
            for name in names:
                h = h + 2**power * params[name].sum()
                for offset, unit in start[name]:
                    t[:, offset : offset + params[name].size] += unit * 2**power
        elif op in ("real", "abs2", "conj", "pairs"):
            h, t = _parted(op, h, t, lib)
        else:
            assert op == "zero", op
            h, t = h * 0, t * 0
    return h, t


def moving(structure: Structure, values: Values, lib: Any) -> dict[str, np.ndarray]:
    """Return the parameters that move, as numbers of `lib`."""
    return {leaf.name: lib.array(values.params[leaf.name]) for leaf in structure.moving}
