r"""Deep matrix factorisation: \(\beta = W_1 \cdots W_L\), squared error on the observed entries.

With \(A_l = W_1\cdots W_{l-1}\) and \(B_l = W_{l+1}\cdots W_L\) the Jacobian sends \((X_l)\) to
\(\sum_l A_lX_lB_l\), its transpose \(M\) to \((A_l^\top MB_l^\top)_l\), and the kernel is

\[ K(M) = JJ^\top(M) = \sum_l A_lA_l^\top\,M\,B_l^\top B_l. \]

The loss is \(\tfrac12\sum_{\text{observed}}(\beta - \text{target})^2\), its differential \(G =
\text{mask}\odot(\beta - \text{target})\). Two Fisher matrices of \(\beta\) are in use, and differ:
that of all entries, the identity, and that of the observed ones, the mask.

| | natural gradient in the factors |
|---|---|
| all entries | \(J^+G\): `natural_gradient`, in `_minimum_norm.py` |
| observed entries | \((\text{mask}\odot J)^+G\): `masked_natural_gradient`, in `_masked.py` |
| the split formula | \(\frac1L A_l^+GB_l^+\): `split` |

The split formula solves \(J_lX_l = G/L\) layer by layer. It is *a* solution of \(JX = G\) if every
\(A_l\) has full row rank and every \(B_l\) full column rank, never the shortest one unless the
factors are orthogonal up to scale, and no natural gradient otherwise (bottlenecks, a singular
factor).
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._base.types import Scalar
from . import _check
from ._masked import masked_pseudoinverse
from ._minimum_norm import Factors, kernel, minimum_norm, partial_products, pull, push


class MatrixProduct(eqx.Module):
    r"""A product of matrices. `factors` is a sequence of `depth` matrices, `target` a matrix like
    the product, `mask` one of booleans, all true if left out.

    **Arguments:**

    - `depth`: the number of factors.
    - `shapes`: the dimensions \((D_0, \ldots, D_L)\), factor l of shape \((D_{l-1}, D_l)\);
        anything that fits together if left out.
    """

    depth: int = eqx.field(static=True)
    shapes: tuple[int, ...] | None = eqx.field(static=True)

    def __init__(self, depth: int, shapes: Sequence[int] | None = None):
        self.depth = _check.whole_depth("MatrixProduct", depth)
        if shapes is not None:
            shapes = tuple(int(size) for size in shapes)
            if len(shapes) != self.depth + 1 or min(shapes) < 1:
                raise ValueError(
                    f"MatrixProduct(depth={depth}, shapes={shapes}): shapes must hold the {self.depth + 1} dimensions (D_0, ..., D_L), each at least 1."
                )
        self.shapes = shapes

    def _factors(self, factors: Sequence[Array]) -> Factors:
        if len(factors) != self.depth:
            raise ValueError(f"factors must hold {self.depth} matrices, got {len(factors)}.")
        checked = tuple(_check.floating(f"factors[{l}]", w, 2) for l, w in enumerate(factors))
        sizes = (checked[0].shape[0], *(w.shape[1] for w in checked))
        for l, w in enumerate(checked):
            if w.shape[0] != sizes[l]:
                raise ValueError(
                    f"factors[{l}] must have {sizes[l]} rows, the columns of factors[{l - 1}]; got the shape {w.shape}."
                )
        if self.shapes is not None and sizes != self.shapes:
            raise ValueError(
                f"factors multiply matrices of dimensions {sizes}, not the shapes {self.shapes} of this MatrixProduct."
            )
        return checked

    def _covector(self, factors, target, mask):
        product = push(factors)
        target = _check.floating("target", target, 2).astype(product.dtype)
        if target.shape != product.shape:
            raise ValueError(
                f"target must have the shape {product.shape} of the product, got {target.shape}."
            )
        return jnp.where(self._mask(mask, product.shape), product - target, 0)

    def _mask(self, mask, shape):
        if mask is None:
            return jnp.ones(shape, bool)
        if np.shape(mask) != shape or jnp.asarray(mask).dtype != bool:
            raise ValueError(
                f"mask must hold booleans in the shape {shape} of the product; got {jnp.asarray(mask).dtype}{np.shape(mask)}."
            )
        return jnp.asarray(mask)

    def product(self, factors: Sequence[Float[Array, "..."]]) -> Float[Array, "m n"]:
        """β.

        **Arguments:**

        - `factors`: the matrices.
        """
        return push(self._factors(factors))

    def loss(
        self,
        factors: Sequence[Float[Array, "..."]],
        target: Float[Array, "m n"],
        mask: Bool[Array, "m n"] | None = None,
    ) -> Scalar:
        """Half the squared error on the observed entries.

        **Arguments:**

        - `factors`, `target`, `mask`: the matrices, the matrix to fit and where it is observed.
        """
        return jnp.sum(self._covector(self._factors(factors), target, mask) ** 2) / 2

    def gradient(
        self,
        factors: Sequence[Float[Array, "..."]],
        target: Float[Array, "m n"],
        mask: Bool[Array, "m n"] | None = None,
    ) -> Factors:
        """The differential of the loss in the factors.

        **Arguments:**

        - `factors`, `target`, `mask`: the matrices, the matrix to fit and where it is observed.
        """
        checked = self._factors(factors)
        return pull(checked, self._covector(checked, target, mask))

    def split(
        self,
        factors: Sequence[Float[Array, "..."]],
        target: Float[Array, "m n"],
        mask: Bool[Array, "m n"] | None = None,
    ) -> Factors:
        """The split formula, A_l⁺ G B_l⁺ / L, as a candidate for a natural gradient: see the module
        for when it is one.

        **Arguments:**

        - `factors`, `target`, `mask`: the matrices, the matrix to fit and where it is observed.
        """
        checked = self._factors(factors)
        g = self._covector(checked, target, mask) / self.depth
        if self.depth == 1:
            return (g,)
        return _split(checked, g)

    def natural_gradient(
        self,
        factors: Sequence[Float[Array, "..."]],
        target: Float[Array, "m n"],
        mask: Bool[Array, "m n"] | None = None,
        throw: bool = True,
    ) -> Factors:
        """J⁺G, the shortest natural gradient in the factors for the Fisher matrix of all entries.

        **Arguments:**

        - `factors`, `target`, `mask`: the matrices, the matrix to fit and where it is observed.
        - `throw`: whether an iteration (depth 3 and more) that did not converge is an error.
        """
        checked = self._factors(factors)
        return minimum_norm(checked, self._covector(checked, target, mask), throw)

    def masked_natural_gradient(
        self,
        factors: Sequence[Float[Array, "..."]],
        target: Float[Array, "m n"],
        mask: Bool[Array, "m n"],
    ) -> Factors:
        """The shortest natural gradient in the factors for the Fisher matrix of the observed
        entries.

        **Arguments:**

        - `factors`, `target`: the matrices and the matrix to fit.
        - `mask`: where it is observed; concrete, for the number of observations is a size. The
            kernel of the observations is formed.
        """
        checked = self._factors(factors)
        if isinstance(mask, jax.core.Tracer):
            raise ValueError("mask must be concrete: close over it, or make it a static argument.")
        g = self._covector(checked, target, mask)
        rows, columns = np.nonzero(np.asarray(mask))
        if rows.size == 0:
            raise ValueError("mask observes no entry; set at least one to True.")
        return masked_pseudoinverse(
            checked, g[rows, columns], jnp.asarray(rows), jnp.asarray(columns)
        )

    def fisher(
        self, factors: Sequence[Float[Array, "..."]], mask: Bool[Array, "m n"] | None = None
    ) -> Float[Array, "P P"]:
        """The Fisher matrix in the factors, flattened one after the other: of all entries, or of
        the observed ones. Dense, for small sizes.

        **Arguments:**

        - `factors`: the matrices.
        - `mask`: the observed entries; all if left out.
        """
        checked = self._factors(factors)
        before, after = partial_products(checked)
        eye = lambda a, size: jnp.eye(size, dtype=checked[0].dtype) if a is None else a
        m, n = checked[0].shape[0], checked[-1].shape[1]
        blocks = [
            jnp.einsum("ia,bj->ijab", eye(a, m), eye(b, n)).reshape(m * n, -1)
            for a, b in zip(before, after, strict=True)
        ]
        j = jnp.concatenate(blocks, axis=1)
        seen = jnp.ravel(self._mask(mask, (m, n))).astype(j.dtype)
        return (j * seen[:, None]).T @ j

    def ntk(
        self, factors: Sequence[Float[Array, "..."]], row: int, column: int
    ) -> Float[Array, "m n"]:
        """How all entries of β move under Euclidean gradient flow in the factors in answer to a
        unit of -∂L/∂β at one entry: K(e_ij).

        **Arguments:**

        - `factors`: the matrices.
        - `row`, `column`: the entry.
        """
        checked = self._factors(factors)
        return kernel(checked, self._unit(checked, row, column))

    def natural_ntk(
        self, factors: Sequence[Float[Array, "..."]], row: int, column: int
    ) -> Float[Array, "m n"]:
        """The same under natural gradient flow, Fisher matrix of all entries: J J⁺(e_ij), which is
        e_ij wherever J is onto.

        **Arguments:**

        - `factors`: the matrices.
        - `row`, `column`: the entry.
        """
        checked = self._factors(factors)
        return push(checked, minimum_norm(checked, self._unit(checked, row, column)))

    def _unit(self, factors, row, column):
        m, n = factors[0].shape[0], factors[-1].shape[1]
        if not (-m <= row < m and -n <= column < n):
            raise ValueError(f"row={row}, column={column}: the product has the shape ({m}, {n}).")
        return jnp.zeros((m, n), factors[0].dtype).at[row, column].set(1)


def _around(a: Array | None, g: Array, b: Array | None) -> Array:
    """a g b, where None stands for the identity."""
    g = g if a is None else a @ g
    return g if b is None else g @ b


@jax.jit
def _split(factors, g):
    if any(w.shape[0] != w.shape[1] for w in factors):
        return _split_by_pseudoinverses(factors, None, g)
    factorised = tuple(jax.lax.linalg.lu(w) for w in factors)
    pivots = jnp.abs(jnp.stack([jnp.diagonal(lu) for lu, _, _ in factorised]))
    # An inverse is the pseudo-inverse, and its product that of the product, while no factor is near
    # singular.
    regular = jnp.all(
        jnp.min(pivots, axis=1) > 1e6 * jnp.finfo(g.dtype).eps * jnp.max(pivots, axis=1)
    )
    return jax.lax.cond(
        regular, _split_by_inverses, _split_by_pseudoinverses, factors, factorised, g
    )


def _split_by_inverses(factors, factorised, g):
    """X_1 = G B_1⁻¹, X_2 = W_1⁻¹ (G B_2⁻¹) from the way there, then X_{l+1} = W_l⁻¹ X_l W_{l+1}:
    the terms differ by one factor on either side.
    """
    right = [g]
    for lu in factorised[:0:-1]:
        right.append(_divided_right(lu, right[-1]))
    result = [right[-1], _divided_left(factorised[0], right[-2])]
    for lu, w in zip(factorised[1:-1], factors[2:], strict=True):
        result.append(_divided_left(lu, result[-1]) @ w)
    return tuple(result)


def _divided_left(factorised, g):
    """W⁻¹ G, from P W = L U."""
    lu, _, permutation = factorised
    y = jax.lax.linalg.triangular_solve(
        lu, g[permutation], left_side=True, lower=True, unit_diagonal=True
    )
    return jax.lax.linalg.triangular_solve(lu, y, left_side=True)


def _divided_right(factorised, g):
    """G W⁻¹."""
    lu, _, permutation = factorised
    y = jax.lax.linalg.triangular_solve(lu, g)
    y = jax.lax.linalg.triangular_solve(lu, y, lower=True, unit_diagonal=True)
    return jnp.zeros_like(y).at[:, permutation].set(y, unique_indices=True)


def _split_by_pseudoinverses(factors, _, g):
    before, after = partial_products(factors)
    inverse = lambda a: None if a is None else jnp.linalg.pinv(a)
    return tuple(_around(inverse(a), g, inverse(b)) for a, b in zip(before, after, strict=True))
