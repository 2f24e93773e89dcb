r"""The proximal family: \(\arg\min_u J(u) + \lambda\rho(u, \theta)\), and what becomes of it as its
two terms are expanded.

| step | \(J\) | \(\rho\) | distance from the proximal step |
|---|---|---|---|
| `proximal_step` | exact | exact | 0 |
| `implicit_step` | exact | \(\lVert u - \theta\rVert^2/2\) | 0 for that \(\rho\) |
| `mirror_step` | first order | exact | \(O(\lambda^{-2})\) |
| `linearised_proximal_step` | first order | second order | \(O(\lambda^{-2})\) |
| `damped_newton_step` | second order | second order | \(O(\lambda^{-2})\) |

`linearised_proximal_step` is natural gradient descent. `damped_newton_step` is \(O(\lambda^{-3})\)
from the proximal step if \(\rho\) is quadratic. Otherwise the cubic term of \(\rho\) is of the
order of the quadratic one of \(J\), and expanding \(J\) further gains no order.
"""

from .mirror import AbstractMirror as AbstractMirror
from .mirror import BregmanMirror as BregmanMirror
from .mirror import DivergenceMirror as DivergenceMirror
from .mirror import EuclideanMirror as EuclideanMirror
from .mirror import KLMirror as KLMirror
from .mirror import ReverseKLMirror as ReverseKLMirror
from .mirror import mirror_step as mirror_step
from .point import ProximalStep as ProximalStep
from .products import gauss_newton as gauss_newton
from .products import generalised_gauss_newton as generalised_gauss_newton
from .steps import damped_newton_step as damped_newton_step
from .steps import implicit_step as implicit_step
from .steps import linearised_proximal_step as linearised_proximal_step
from .steps import output_step as output_step
from .steps import proximal_step as proximal_step
