r"""Generalised inverses at random, and the projection they must lead to, made without any of them.

\(X\) is a \(\{1\}\)-inverse of \(G\) if \(GXG = G\). With any one of them, \(G^+\) say, all others
are

\[ X = G^+ + (I - G^+G)\,W + V\,(I - GG^+), \qquad W, V \text{ arbitrary}, \]

in general neither symmetric nor of the rank of \(G\).
"""

import numpy as np


def random_inverse(rng: np.random.Generator, g: np.ndarray) -> np.ndarray:
    """A {1}-inverse of a matrix, with W and V of standard normal entries."""
    pseudo = np.linalg.pinv(g, rcond=1e-12)
    rows, columns = g.shape
    w = rng.standard_normal((columns, rows))
    v = rng.standard_normal((columns, rows))
    return pseudo + (np.eye(columns) - pseudo @ g) @ w + v @ (np.eye(rows) - g @ pseudo)


def asymmetry(x: np.ndarray) -> float:
    """The norm of the antisymmetric part relative to the whole."""
    return float(np.linalg.norm(x - x.T) / np.linalg.norm(x) / 2)


def projector(vectors: np.ndarray, metric: np.ndarray, rank: int) -> np.ndarray:
    r"""The projection on the span of the columns, orthogonal in a positive definite metric \(M =
    LL^\top\): \(L^{-\top} Q Q^\top L^\top\), \(Q\) an orthonormal basis of the span of \(L^\top
    e_i\).
    """
    lower = np.linalg.cholesky(metric)
    basis = np.linalg.svd(lower.T @ vectors)[0][:, :rank]
    return np.linalg.solve(lower.T, basis @ (basis.T @ lower.T))
