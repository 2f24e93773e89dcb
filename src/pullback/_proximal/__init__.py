r"""The proximal family: \(\arg\min_u J(u) + \lambda\rho(u, \theta)\), and what becomes of it as its two terms are expanded.

| step | \(J\) | \(\rho\) | differs from the proximal step by |
|---|---|---|---|
| `proximal_step` | exact | exact | - |
| `implicit_step` | exact | \(\lVert u - \theta\rVert^2/2\) | - (it is the proximal step of that \(\rho\)) |
| `mirror_step` | first order | exact | \(O(\lambda^{-2})\) |
| `linearised_proximal_step`, the natural gradient | first order | second order | \(O(\lambda^{-2})\) |
| `damped_newton_step` | second order | second order | \(O(\lambda^{-2})\); \(O(\lambda^{-3})\) if \(\rho\) is quadratic |

The cubic term of \(\rho\) is of the order of the quadratic one of \(J\), so that expanding \(J\) further gains no order unless \(\rho\) is quadratic.
"""

from ._mirror import AbstractMirror as AbstractMirror
from ._mirror import BregmanMirror as BregmanMirror
from ._mirror import DivergenceMirror as DivergenceMirror
from ._mirror import EuclideanMirror as EuclideanMirror
from ._mirror import KLMirror as KLMirror
from ._mirror import ReverseKLMirror as ReverseKLMirror
from ._mirror import mirror_step as mirror_step
from ._products import gauss_newton as gauss_newton
from ._products import generalised_gauss_newton as generalised_gauss_newton
from ._steps import ProximalStep as ProximalStep
from ._steps import damped_newton_step as damped_newton_step
from ._steps import implicit_step as implicit_step
from ._steps import linearised_proximal_step as linearised_proximal_step
from ._steps import output_step as output_step
from ._steps import proximal_step as proximal_step
