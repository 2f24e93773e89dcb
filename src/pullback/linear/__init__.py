"""Closed forms for linear models: logistic regression, diagonal networks, matrix products.

Nothing here uses the generic path of the library: each formula is derived for its own model, so
that the closed forms and the generic path check each other.
"""

from ._completion import effective_rank as effective_rank
from ._completion import minimum_nuclear_norm as minimum_nuclear_norm
from ._diagonal import Diagonal as Diagonal
from ._hyperbolic import hyperbolic_projection as hyperbolic_projection
from ._logistic import Logistic as Logistic
from ._margins import l1_interpolant as l1_interpolant
from ._margins import l1_margin as l1_margin
from ._margins import l2_interpolant as l2_interpolant
from ._margins import l2_margin as l2_margin
from ._margins import lp_margin as lp_margin
from ._matrix_product import MatrixProduct as MatrixProduct
