"""How a generalised inverse is computed, one way per file."""

from .._rows.rows import Rows as Rows
from ._auto import Auto as Auto
from ._auto import Choice as Choice
from ._base import AbstractDecomposition as AbstractDecomposition
from ._base import AbstractFactors as AbstractFactors
from ._base import AbstractSolver as AbstractSolver
from ._base import Block as Block
from ._base import Places as Places
from ._base import Spectrum as Spectrum
from ._blocks import Blocks as Blocks
from ._cost import Cost as Cost
from ._cost import Setting as Setting
from ._dual import Dual as Dual
from ._krylov import Krylov as Krylov
from ._mixed import Mixed as Mixed
from ._preconditioner import AbstractPreconditioner as AbstractPreconditioner
from ._preconditioner import Diagonal as Diagonal
from ._preconditioner import Kronecker as Kronecker
from ._preconditioner import Nystrom as Nystrom
from ._preconditioner import SampleBlocks as SampleBlocks
from ._primal import Primal as Primal
from ._svd import SVD as SVD
