r"""Eight points of a plane, separable along the first axis, with three different answers to the
question for the best separator.

The largest \(\ell_2\) margin is the direction of the point nearest to the origin, \(\tilde x = (1,
0.4)\), at 21.8°; the largest \(\ell_1\) margin is the first axis, 0°, since the same point has the
smallest first coordinate and \(0.4 < 1\); the linear program of the natural flow
(`limit_direction`) has this point and \((1.3, 3.85)\) active, at -5.0°.
"""

import numpy as np

SIGNED = np.array(
    [
        [1.0, 0.4],
        [1.3, 3.85],
        [1.4, 3.0],
        [1.6, 2.4],
        [1.5, 1.2],
        [2.2, 0.8],
        [1.9, -0.6],
        [2.4, 1.9],
    ]
)
"""yᵢ xᵢ."""
Y = np.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
X = Y[:, None] * SIGNED


def degrees(v: np.ndarray) -> np.ndarray:
    """The angle of vectors of the plane with the first axis."""
    return np.degrees(np.arctan2(v[..., 1], v[..., 0]))
