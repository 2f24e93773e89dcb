"""Pictures: metric ellipses, paths in both spaces, spectra, orders, kernels, distances.

Every function returns `(figure, axes)` and shows nothing. Needs matplotlib:
`pip install 'pullback[figures]'`.
"""

from ._curves import distances as distances
from ._curves import orders as orders
from ._curves import spectrum as spectrum
from ._ellipses import ellipses as ellipses
from ._flows import path as path
from ._kernels import kernel as kernel
from ._kernels import kernels as kernels
from ._spaces import spaces as spaces
