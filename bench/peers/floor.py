"""The floor: the matrix products and the factorisation that the structured algorithm cannot avoid,
as BLAS and LAPACK calls of their very shapes.

With m = N q rows (q = C - 1 for a softmax), layers z = x W of `inputs` a and `outputs` b met at T
positions of each sample, in the dtype of the workload:

- forward: T N × a × b; to the taps, for every row: T m × b × a, from the second layer on; the last
    pull Aᵀy: backward and the weights' gradient;
- dual side (m < P), lower half only, each layer by the cheaper of
    - T² pairs of positions, (X Xᵀ) ∘ (D Dᵀ): syrk N × a and m × b for T = 1, gemm for the pairs of
        different positions,
    - its block of rows: T × a × b products for each row, then syrk m × (a + 1) b;
  then the Cholesky factorisation of m × m and two triangular solves;
- primal side: outputs contracted before samples. With x xᵀ and D Dᵀ of each sample as rows, the
  block of two layers is one product over the N samples; of a layer with itself, the lower half.
  Then Cholesky of P × P and two solves.

Elementwise work, memory traffic between the calls and the contraction over outputs (primal) are
free. It is a floor of this algorithm, not a proof that no other is faster. W5: one LU factorisation
and the solves with M_{l+1} = W_l⁻¹ M_l W_{l+1}, for each layer, after the plain gradient.
"""

import numpy as np
import scipy.linalg as sl

from ..problems import DEPTHS, Layer, Workload, find, flat, layers, make
from ..worker import Approach, timed

PACKAGES = ("scipy", "numpy")


class _Calls:
    """Calls on preallocated operands; equal calls are made once and repeated."""

    def __init__(self, dtype: str):
        self.dtype = np.dtype(dtype)
        self.prefix = "s" if self.dtype == np.float32 else "d"
        self.calls: dict[tuple, int] = {}
        self.rng = np.random.default_rng(0)
        self.operands: dict[tuple[int, int], np.ndarray] = {}

    def add(self, kind: str, *shape: int, times: int = 1):
        if min(shape) > 0:
            self.calls[kind, *shape] = self.calls.get((kind, *shape), 0) + times

    def gemm(self, a: int, b: int, c: int, times: int = 1):
        self.add("gemm", a, b, c, times=times)

    def run(self) -> tuple[float, float]:
        total = np.zeros(2)
        for (kind, *shape), times in self.calls.items():
            for _ in range(times):
                total += getattr(self, "_" + kind)(*shape)
        return float(total[0]), float(total[1])

    def _operand(self, rows: int, columns: int) -> np.ndarray:
        if (rows, columns) not in self.operands:
            self.operands[rows, columns] = np.asfortranarray(
                self.rng.standard_normal((rows, columns)).astype(self.dtype)
            )
        return self.operands[rows, columns]

    def _gemm(self, a: int, b: int, c: int):
        blas = getattr(sl.blas, self.prefix + "gemm")
        x = self._operand(a, b)
        y = self._operand(b, c)
        out = np.empty((a, c), self.dtype, order="F")
        return timed(lambda: blas(1.0, x, y, c=out, overwrite_c=1))[1]

    def _syrk(self, n: int, k: int):
        blas = getattr(sl.blas, self.prefix + "syrk")
        x = self._operand(n, k)
        out = np.empty((n, n), self.dtype, order="F")
        return timed(lambda: blas(1.0, x, c=out, lower=1, overwrite_c=1))[1]

    def _positive(self, n: int) -> np.ndarray:
        a = np.full((n, n), 0.1 / n, self.dtype, order="F")
        np.fill_diagonal(a, 1.0)
        return a

    def _cholesky(self, n: int):
        potrf = getattr(sl.lapack, self.prefix + "potrf")
        trsv = getattr(sl.blas, self.prefix + "trsv")
        a = self._positive(n)
        y = np.ones(n, self.dtype)

        def run():
            factor, info = potrf(a, lower=1, clean=0, overwrite_a=1)
            assert info == 0
            trsv(factor, trsv(factor, y, lower=1), lower=1, trans=1)

        return timed(run)[1]


def _dual(calls: _Calls, workload: Workload, layer: Layer):
    """The kernel of one layer, lower half: the cheaper of its two ways."""
    n = workload.samples
    m = workload.rows
    t = layer.positions
    a = layer.inputs
    b = layer.outputs
    pairs = t * t * (n * n * a + m * m * b)
    rows = 2 * t * m * a * b + m * m * (a + 1) * b
    if pairs <= rows:
        # Position p with p: symmetric. p with p' < p: the lower half of the sum of it and its
        # transpose is one full product.
        calls.add("syrk", n, a, times=t)
        calls.add("syrk", m, b, times=t)
        calls.gemm(n, a, n, times=t * (t - 1) // 2)
        calls.gemm(m, b, m, times=t * (t - 1) // 2)
    else:
        # One product a row, T × a by b; those of a sample share X, so its rows are taken together.
        calls.gemm(a, t, workload.root_size * b, times=n)
        calls.add("syrk", m, (a + 1) * b)
    return min(pairs, rows)


def _primal(calls: _Calls, workload: Workload):
    found = layers(workload)
    for i, one in enumerate(found):
        a = one.inputs + 1
        b = one.outputs
        calls.gemm(a * (a + 1) // 2, workload.samples, b * b)
        for other in found[:i]:
            calls.gemm(a * (other.inputs + 1), workload.samples, b * other.outputs)


def _calls(workload: Workload) -> _Calls:
    calls = _Calls(workload.dtype)
    size = flat(make(workload)[0]).size
    for i, layer in enumerate(layers(workload)):
        n = workload.samples * layer.positions
        a = layer.inputs
        b = layer.outputs
        calls.gemm(n, a, b)
        calls.gemm(a, n, b)
        if i:
            calls.gemm(n, b, a)
            calls.gemm(n * workload.root_size, b, a)
        if workload.rows < size:
            _dual(calls, workload, layer)
    if workload.rows >= size:
        _primal(calls, workload)
    calls.add("cholesky", min(workload.rows, size))
    return calls


def _product(workload: Workload, depth: int):
    """W5 in NumPy: the plain gradient, or the LU recursion of the closed form."""
    layers_, (_, target) = make(workload)
    layers_ = layers_[:depth]

    def gradient(cotangent):
        before = [np.eye(len(target))]
        for w in layers_[:-1]:
            before.append(before[-1] @ w)
        after = cotangent
        out = []
        for w, left in zip(layers_[::-1], before[::-1], strict=True):
            out.append(left.T @ after)
            after = after @ w.T
        return out[::-1]

    def product():
        total = layers_[0]
        for w in layers_[1:]:
            total = total @ w
        return total

    def recursion():
        cotangent = product() - target
        factors = [sl.lapack.dgetrf(w)[:2] for w in layers_]
        # Σ_l W_1…W_{l-1} V_l W_{l+1}…W_L = cotangent, each layer its L-th part: V_l =
        # (W_1…W_{l-1})⁻¹ cotangent (W_{l+1}…W_L)⁻¹ / L.
        current = cotangent.T
        for factor in factors[:0:-1]:
            current = sl.lapack.dgetrs(*factor, current, trans=1)[0]
        out = [current.T / depth]
        for factor, right in zip(factors[:-1], layers_[1:], strict=True):
            out.append(sl.lapack.dgetrs(*factor, out[-1] @ right)[0])
        return out

    return {"gradient": lambda: gradient(product() - target), "recursion": recursion}


def build(name: str, approach: str) -> Approach:
    """`floor`, the floor of a workload; for W5 `gradient-3`, `recursion-3`, ..."""
    workload = find(name)
    if workload.kind == "product":
        what, _, depth = approach.partition("-")
        assert int(depth) in DEPTHS
        return Approach(_product(workload, int(depth))[what])
    calls = _calls(workload)
    return Approach(calls.run, seconds=lambda result: result)
