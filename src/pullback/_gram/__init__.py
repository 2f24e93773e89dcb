"""K and G from the layers of a model, without forming J, where the program allows it."""

from .factors import Factors as Factors
from .factors import Layout as Layout
from .factors import layout as layout
from .factors import sample_factors as sample_factors
from .flops import flops as flops
from .kernel import diagonal_blocks as diagonal_blocks
from .kernel import kernel as kernel
from .kernel import kernel_of_rows as kernel_of_rows
from .kernel import product as product
from .kernel import tile_count as tile_count
from .metric import assemble as assemble
from .metric import blocks as blocks
from .walk import Walk as Walk
from .walk import walk as walk
