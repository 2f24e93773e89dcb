r"""Deep matrix factorisation: \(\beta = W_1 \cdots W_L\), squared error on the observed entries.

With \(A_l = W_1\cdots W_{l-1}\) and \(B_l = W_{l+1}\cdots W_L\) the Jacobian sends \((X_l)\) to
\(\sum_l A_lX_lB_l\), its transpose \(M\) to \((A_l^\top MB_l^\top)_l\), and the kernel is

\[ K(M) = JJ^\top(M) = \sum_l A_lA_l^\top\,M\,B_l^\top B_l. \]

The loss is \(\tfrac12\sum_{\text{observed}}(\beta - \text{target})^2\), its differential \(G =
\text{mask}\odot(\beta - \text{target})\). Two different Fisher matrices of \(\beta\) are in use:
that of all entries is the identity, that of the observed entries is the mask.

| | natural gradient in the factors |
|---|---|
| all entries | \(J^+G\): `natural_gradient`, in `_minimum_norm.py` |
| observed entries | \((\text{mask}\odot J)^+G\): `masked_natural_gradient`, in `_masked.py` |
| the split formula | \(\frac1L A_l^+GB_l^+\): `split` |

The split formula solves \(J_lX_l = G/L\) layer by layer. It is *a* solution of \(JX = G\) if every
\(A_l\) has full row rank and every \(B_l\) full column rank. It is the shortest solution only if
the factors are orthogonal up to scale. With bottlenecks or a singular factor it is no natural
gradient.
"""

from collections.abc import Sequence
from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._base import checks
from .._base.types import Scalar
from .._base.vector import finite_or_nan
from ._masked import masked_pseudoinverse
from ._minimum_norm import Factors, kernel, minimum_norm, partial_products, pull, push

LU: TypeAlias = tuple[Array, Array, Array]
"""A factorisation of a matrix: L and U in one array, pivots, permutation."""


class MatrixProduct(eqx.Module):
    r"""A product of matrices under the squared error on the observed entries.

    In all methods `factors` is a sequence of `depth` matrices, `target` a matrix like the product,
    and `mask` a matrix of booleans like the product, which defaults to all true.

    **Arguments:**

    - `depth`: the number of factors.
    - `shapes`: the dimensions \((D_0, \ldots, D_L)\), factor l of shape \((D_{l-1}, D_l)\).
        Defaults to `None`: any factors that fit together.
    """

    depth: int = eqx.field(static=True)
    shapes: tuple[int, ...] | None = eqx.field(static=True)

    def __init__(self, depth: int, shapes: Sequence[int] | None = None):
        self.depth = checks.integer(
            "MatrixProduct", "depth", depth, least=1, example="MatrixProduct(depth=2)"
        )
        if shapes is not None:
            shapes = tuple(int(size) for size in shapes)
            if len(shapes) != self.depth + 1 or min(shapes) < 1:
                wanted = f"the {self.depth + 1} dimensions (D_0, ..., D_L), each at least 1"
                example = f"MatrixProduct({self.depth}, shapes={(3,) * (self.depth + 1)})"
                raise checks.error("MatrixProduct", "shapes", shapes, wanted, example)
        self.shapes = shapes

    def _factors(self, owner: str, factors: Sequence[Array]) -> Factors:
        """The factors as arrays; raises unless they can be multiplied and fit `shapes`."""
        if len(factors) != self.depth:
            wanted = f"{self.depth} matrices, not {len(factors)}"
            raise checks.error(owner, "factors", factors, wanted)
        checked = tuple(
            checks.floating(owner, f"factors[{l}]", w, 2) for l, w in enumerate(factors)
        )
        sizes = (checked[0].shape[0], *(w.shape[1] for w in checked))
        for l, w in enumerate(checked):
            if w.shape[0] != sizes[l]:
                rows = f"a matrix with {sizes[l]} rows, the columns of factors[{l - 1}]"
                raise checks.error(owner, f"factors[{l}]", w, f"{rows}, not of shape {w.shape}")
        if self.shapes is not None and sizes != self.shapes:
            wanted = f"matrices of the dimensions {self.shapes} of this MatrixProduct, not {sizes}"
            raise checks.error(owner, "factors", checked, wanted)
        return checked

    def _covector(
        self,
        owner: str,
        factors: Factors,
        target: Float[Array, "m n"],
        mask: Bool[Array, "m n"] | None,
    ) -> Float[Array, "m n"]:
        """G, the differential of the loss in the product."""
        product = push(factors)
        target = checks.floating(owner, "target", target, 2).astype(product.dtype)
        if target.shape != product.shape:
            wanted = f"of the shape {product.shape} of the product, not {target.shape}"
            raise checks.error(owner, "target", target, wanted)
        return jnp.where(self._mask(owner, mask, product.shape), product - target, 0)

    def _mask(
        self, owner: str, mask: Bool[Array, "m n"] | None, shape: tuple[int, ...]
    ) -> Bool[Array, "m n"]:
        """Where the product is observed."""
        return jnp.ones(shape, bool) if mask is None else checks.mask(owner, "mask", mask, shape)

    def product(self, factors: Sequence[Float[Array, "..."]]) -> Float[Array, "m n"]:
        """β, the product of the factors.

        **Arguments:**

        - `factors`: the matrices.
        """
        return push(self._factors("MatrixProduct.product", factors))

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
        owner = "MatrixProduct.loss"
        checked = self._factors(owner, factors)
        return jnp.sum(self._covector(owner, checked, target, mask) ** 2) / 2

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
        owner = "MatrixProduct.gradient"
        checked = self._factors(owner, factors)
        return pull(checked, self._covector(owner, checked, target, mask))

    def split(
        self,
        factors: Sequence[Float[Array, "..."]],
        target: Float[Array, "m n"],
        mask: Bool[Array, "m n"] | None = None,
    ) -> Factors:
        """The split formula, A_l⁺ G B_l⁺ / L.

        It is a natural gradient only under conditions on the ranks of the factors: every product of
        leading factors has full row rank, every product of trailing factors full column rank.

        **Arguments:**

        - `factors`, `target`, `mask`: the matrices, the matrix to fit and where it is observed.
        """
        owner = "MatrixProduct.split"
        checked = self._factors(owner, factors)
        g = self._covector(owner, checked, target, mask) / self.depth
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
        - `throw`: whether an iteration (depth 3 and more) that did not converge raises an error.
        """
        owner = "MatrixProduct.natural_gradient"
        checked = self._factors(owner, factors)
        return minimum_norm(checked, self._covector(owner, checked, target, mask), throw)

    def masked_natural_gradient(
        self,
        factors: Sequence[Float[Array, "..."]],
        target: Float[Array, "m n"],
        mask: Bool[Array, "m n"],
    ) -> Factors:
        """The shortest natural gradient for the Fisher matrix of the observed entries.

        The kernel of the observations is formed.

        **Arguments:**

        - `factors`, `target`: the matrices and the matrix to fit.
        - `mask`: where it is observed; it cannot be traced, because the number of observations is
            the size of an array.
        """
        owner = "MatrixProduct.masked_natural_gradient"
        checked = self._factors(owner, factors)
        if not checks.is_concrete(mask):
            cure = "close over it, or make it a static argument"
            raise checks.error(owner, "mask", mask, f"concrete, not traced: {cure}")
        g = self._covector(owner, checked, target, mask)
        rows, columns = np.nonzero(np.asarray(mask))
        if rows.size == 0:
            raise checks.error(owner, "mask", mask, "True in at least one entry")
        return masked_pseudoinverse(
            checked, g[rows, columns], jnp.asarray(rows), jnp.asarray(columns)
        )

    def fisher(
        self, factors: Sequence[Float[Array, "..."]], mask: Bool[Array, "m n"] | None = None
    ) -> Float[Array, "P P"]:
        """The Fisher matrix of the observed entries in the factors, flattened one after the other.

        It is dense, for small sizes.

        **Arguments:**

        - `factors`: the matrices.
        - `mask`: the observed entries; defaults to all.
        """
        owner = "MatrixProduct.fisher"
        checked = self._factors(owner, factors)
        before, after = partial_products(checked)
        eye = lambda a, size: jnp.eye(size, dtype=checked[0].dtype) if a is None else a
        m = checked[0].shape[0]
        n = checked[-1].shape[1]
        blocks = [
            jnp.einsum("ia,bj->ijab", eye(a, m), eye(b, n)).reshape(m * n, -1)
            for a, b in zip(before, after, strict=True)
        ]
        j = jnp.concatenate(blocks, axis=1)
        seen = jnp.ravel(self._mask(owner, mask, (m, n))).astype(j.dtype)
        return (j * seen[:, None]).T @ j

    def ntk(
        self, factors: Sequence[Float[Array, "..."]], row: int, column: int
    ) -> Float[Array, "m n"]:
        """K(e_ij), the velocity of β under Euclidean gradient flow for one entry of the residual.

        The residual -∂L/∂β is 1 at the entry and 0 elsewhere.

        **Arguments:**

        - `factors`: the matrices.
        - `row`, `column`: the entry.
        """
        owner = "MatrixProduct.ntk"
        checked = self._factors(owner, factors)
        return kernel(checked, self._unit(owner, checked, row, column))

    def natural_ntk(
        self, factors: Sequence[Float[Array, "..."]], row: int, column: int
    ) -> Float[Array, "m n"]:
        """J J⁺(e_ij), the velocity of β under natural gradient flow for one entry of the residual.

        The Fisher matrix is that of all entries. The velocity is e_ij wherever J is onto.

        **Arguments:**

        - `factors`: the matrices.
        - `row`, `column`: the entry.
        """
        owner = "MatrixProduct.natural_ntk"
        checked = self._factors(owner, factors)
        return push(checked, minimum_norm(checked, self._unit(owner, checked, row, column)))

    def _unit(self, owner: str, factors: Factors, row: int, column: int) -> Float[Array, "m n"]:
        """e_ij, the matrix with one entry 1."""
        m = factors[0].shape[0]
        n = factors[-1].shape[1]
        for name, index, size in (("row", row, m), ("column", column, n)):
            if not -size <= index < size:
                wanted = f"an index of a product of shape ({m}, {n})"
                raise checks.error(owner, name, index, wanted, f"{owner}(factors, 0, 0)")
        return jnp.zeros((m, n), factors[0].dtype).at[row, column].set(1)


def _around(a: Array | None, g: Array, b: Array | None) -> Array:
    """The product a g b, where `None` is the identity."""
    g = g if a is None else a @ g
    return g if b is None else g @ b


@jax.jit
def _split(factors: Factors, g: Float[Array, "m n"]) -> Factors:
    """The split formula, by inverses where all factors are square and regular."""
    if any(w.shape[0] != w.shape[1] for w in factors):
        return _split_by_pseudoinverses(factors, None, g)
    factorised = tuple(jax.lax.linalg.lu(w) for w in factors)
    pivots = jnp.abs(jnp.stack([jnp.diagonal(lu) for lu, _, _ in factorised]))
    # While no factor is near singular, its inverse is its pseudo-inverse, and the product of the
    # inverses is the pseudo-inverse of the product.
    regular = jnp.all(
        jnp.min(pivots, axis=1) > 1e6 * jnp.finfo(g.dtype).eps * jnp.max(pivots, axis=1)
    )
    return jax.lax.cond(
        regular, _split_by_inverses, _split_by_pseudoinverses, factors, factorised, g
    )


def _split_by_inverses(
    factors: Factors, factorised: tuple[LU, ...], g: Float[Array, "m n"]
) -> Factors:
    """The terms A_l⁻¹ G B_l⁻¹, each from the one before."""
    # X_1 = G B_1⁻¹, and X_2 = W_1⁻¹ (G B_2⁻¹) with the product that is found on the way to X_1.
    # After that X_{l+1} = W_l⁻¹ X_l W_{l+1}: neighbours differ by one factor on either side.
    right = [g]
    for lu in factorised[:0:-1]:
        right.append(_divided_right(lu, right[-1]))
    result = [right[-1], _divided_left(factorised[0], right[-2])]
    for lu, w in zip(factorised[1:-1], factors[2:], strict=True):
        result.append(_divided_left(lu, result[-1]) @ w)
    return tuple(result)


def _divided_left(factorised: LU, g: Array) -> Array:
    """W⁻¹ G, from P W = L U."""
    lu, _, permutation = factorised
    y = jax.lax.linalg.triangular_solve(
        lu, g[permutation], left_side=True, lower=True, unit_diagonal=True
    )
    return jax.lax.linalg.triangular_solve(lu, y, left_side=True)


def _divided_right(factorised: LU, g: Array) -> Array:
    """G W⁻¹, from P W = L U."""
    lu, _, permutation = factorised
    y = jax.lax.linalg.triangular_solve(lu, g)
    y = jax.lax.linalg.triangular_solve(lu, y, lower=True, unit_diagonal=True)
    return jnp.zeros_like(y).at[:, permutation].set(y, unique_indices=True)


def _split_by_pseudoinverses(
    factors: Factors, _: tuple[LU, ...] | None, g: Float[Array, "m n"]
) -> Factors:
    """The terms A_l⁺ G B_l⁺, with the arguments of `_split_by_inverses`."""
    before, after = partial_products(factors)
    inverse = lambda a: None if a is None else jnp.linalg.pinv(finite_or_nan(a))
    return tuple(_around(inverse(a), g, inverse(b)) for a, b in zip(before, after, strict=True))
