r"""The stage of Theorems 1 and 2: a nonlinear map \(\varphi: \mathbb{R}^6 \to \mathbb{R}^3 \to
\mathbb{R}^5\) of rank 3, and on \(\mathbb{R}^5\) a metric that is neither Euclidean nor constant,
\(M(z) = I + zz^\top + \mathrm{diag}(e^{\sin z})\). The second half, \(u \mapsto \tfrac32 Bu +
\tfrac12\sin(Cu)\) with orthonormal columns in \(B\) and \(C\), is an immersion.

At \(\xi_0 = 0\) the rank falls to 2: there the image is not proper, and the tangent space of the
model is larger than the span of the \(\partial_i\).
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import pullback as pb

PARAMETERS = 6
INNER = 3
OUTPUTS = 5
_rng = np.random.default_rng(7)
_B, _C = (np.linalg.qr(_rng.standard_normal((OUTPUTS, INNER)))[0] for _ in range(2))
_T = _rng.standard_normal(OUTPUTS)


def inner(xi: Float[Array, " 6"]) -> Float[Array, " 3"]:
    """The overparametrised half, from six numbers to three."""
    return jnp.stack([xi[0] * xi[1], jnp.sin(xi[2]) + xi[3], xi[0] * xi[4] * xi[5]])


def outer(u: Float[Array, " 3"]) -> Float[Array, " 5"]:
    """The immersion, from three numbers to five."""
    return 1.5 * (jnp.asarray(_B) @ u) + jnp.sin(jnp.asarray(_C) @ u) / 2


def phi(xi: Float[Array, " 6"]) -> Float[Array, " 5"]:
    """The model."""
    return outer(inner(xi))


def matrix(z: Float[Array, " 5"]) -> Float[Array, "5 5"]:
    """M(z)."""
    return jnp.eye(OUTPUTS) + jnp.outer(z, z) + jnp.diag(jnp.exp(jnp.sin(z)))


def loss(z: Float[Array, " 5"]) -> Float[Array, ""]:
    """A function on the output space that is not a quadratic form."""
    return jnp.sum(jnp.sqrt(1 + (z - jnp.asarray(_T)) ** 2))


METRIC = pb.metric.Riemannian(matrix)


def point(rng: np.random.Generator) -> np.ndarray:
    """Parameters at which the rank is 3, well away from where it falls."""
    return rng.uniform(0.4, 1.2, PARAMETERS) * rng.choice([-1, 1], PARAMETERS)
