"""K and G without J, where the structure of the model allows it."""

from ._factors import Factors as Factors
from ._factors import Layout as Layout
from ._factors import layout as layout
from ._factors import sample_factors as sample_factors
from ._flops import flops as flops
from ._kernel import diagonal_blocks as diagonal_blocks
from ._kernel import kernel as kernel
from ._kernel import kernel_of_rows as kernel_of_rows
from ._kernel import product as product
from ._kernel import tile_count as tile_count
from ._metric import assemble as assemble
from ._metric import blocks as blocks
from ._walk import Walk as Walk
from ._walk import walk as walk
