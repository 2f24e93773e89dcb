r"""What one of n devices does, keeps and is sent, from the cost estimate of one with all samples.

Bytes are those of the results of what is sent (sums, copies, factors round a ring), as a compiled
program lists them; loops whose turns are decided at run time count once, but for the iterations of
`Krylov`. A product with A ends in a copy of m numbers, one with its transpose in a sum of P. An
iteration of `Krylov` needs no copy: its vectors on the rows stay where the rows are. The scales of
rows are a copy of m numbers if they are graded; otherwise they are constants, and nothing is sent.
A metric that couples samples has the outputs of all on every device, and lifts their covectors.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp

from .._base.types import Params
from .._compat.devices import Layout, axes_of_spec
from .._gram.kernel import tile_count
from .._gram.structured import block_size
from ..inverse._base import AbstractInverse
from ._cost import KRYLOV_STEPS, SINGULAR, VECTORS, Cost, Kept, Setting, factorisation, held_of
from ._panels import COPIED, MORE, cuts, is_shared

PRODUCTS, OF_SVD = (3, 4, 2), (2, 3, 1)
"""How many with A and with Aᵀ a solution, its right-hand side and its certificate take, and how
often a metric that couples samples gathers outputs, or their covectors; one less for `SVD`."""
OUTSIDE = 2, 5, 1
"""How many of each `Krylov` takes outside of its iterations."""


def is_tall(rows: int, size: int, devices: int) -> bool:
    """Return whether a device has at least as many rows of A as there are parameters."""
    return devices > 1 and rows // devices >= size


def _products(setting: Setting, counts: tuple[int, int, int] = PRODUCTS) -> float:
    """Return how many numbers the products of a solution are, the scales of rows and outputs."""
    forth, back, joint = counts
    # The scales of a metric that couples samples follow from what is everywhere.
    more = sum(t.rows * (joint if t.joint else t.graded) for t in setting.terms)
    return 1.0 * forth * setting.rows + back * setting.size + more


def svd_share(setting: Setting, inverse: AbstractInverse, cost: Cost) -> Cost:
    """Return the cost of `SVD` on each device."""
    n, m, size = setting.devices, setting.rows, setting.size
    if n == 1:
        return cost
    formed, products = setting.jacobian / n, _products(setting, OF_SVD)
    weighs = setting.graded and inverse.cancels_weights
    if is_tall(m, size, n) and not weighs:
        flops = formed + SINGULAR * (m / n + n * size) * size**2
        memory = (3.7 * m / n + 3 * n * size) * size * setting.item
        remark = "A in block rows, R of a QR decomposition on every device"
        return Cost(flops, memory, remark=remark, sent=(n * size**2 + products) * setting.item)
    sent = (1.0 * m * size + products) * setting.item
    flops = cost.flops - setting.jacobian + formed
    return Cost(flops, cost.memory, remark="A on every device", sent=sent)


def dual_share(setting: Setting, inverse: AbstractInverse, structured: bool, cost: Cost) -> Cost:
    """Return the cost of `Dual` on each device."""
    n, m, item = setting.devices, setting.rows, setting.item
    if n == 1:
        return cost
    solve, copies = factorisation(m, inverse)
    held, products = held_of(setting, structured), _products(setting)
    # A block of K between two devices is not known to be the transpose of another.
    formed = 2 * (cost.flops - solve) / n
    damped = inverse.damping is not None or inverse.factorised_per_damping
    if not damped or m * m * item <= COPIED:
        memory = (copies * m * m + 3 * held / n) * item
        sent, remark = (held + m * m + products) * item, "K on every device"
        return Cost(formed + solve, memory, cost.structured, f"{cost.remark}; {remark}", sent)
    memory = (2 * m * m + 3 * held) / n * item
    sent = (held + m * m * (1 + 1 / (n + MORE)) / 2 + products) * item
    # Of a block its panels need what is below the diagonal, to the end of a panel and of a tile.
    here = m // n
    panels, tiles = cuts(here, n), tile_count(here, here, setting.dtype)
    formed *= min(1.0, 0.5 + panels[0][1] / here + 0.5 / tiles)
    # The diagonal blocks are factorised on every device.
    solve *= 1 / n + 1 / len(panels) ** 2
    return Cost(formed + solve, memory, cost.structured, f"{cost.remark}; K in panels", sent)


def primal_share(
    setting: Setting, inverse: AbstractInverse, structured: bool, workspace: int, cost: Cost
) -> Cost:
    """Return the cost of `Primal` on each device; `workspace` bounds its blocks in bytes."""
    n, size = setting.devices, setting.size
    if n == 1:
        return cost
    solve, _ = factorisation(size, inverse)
    blocks = [
        term.count * block_size(term.primal)
        if structured and term.primal is not None
        else term.rows * size
        for term in setting.terms
    ]
    memory = cost.memory - workspace + min(workspace, max(blocks) / n * setting.item)
    sent, formed = 1.0 * size**2 + _products(setting), (cost.flops - solve) / n
    remark = f"{cost.remark}; G on every device"
    damped = inverse.damping is not None or inverse.factorised_per_damping
    if damped and is_shared(size, setting.item, n):
        sent += size**2 * (1 + 1 / (n + MORE)) / 2
        # As for K.
        solve *= 1 / n + 1 / len(cuts(-(-size // n), n)) ** 2
        remark = f"{remark}, its factorisation shared"
    flops, sent = formed + solve, sent * setting.item
    return cost._replace(flops=flops, memory=memory, remark=remark, sent=sent)


def krylov_share(setting: Setting, cost: Cost) -> Cost:
    """Return the cost of `Krylov` on each device."""
    n, m, size, kept = setting.devices, setting.rows, setting.size, setting.kept
    if kept is not None:
        return _kept_share(setting, kept, cost)
    if n == 1:
        return cost
    sent = KRYLOV_STEPS * size + _products(setting, OUTSIDE)
    # The right-hand side, the scales and what certifies it are on every device.
    memory = VECTORS * (size + m / n) + (OUTSIDE[0] + 1) * m
    item = setting.item
    return cost._replace(flops=cost.flops / n, memory=memory * item, sent=sent * item)


def _kept_share(setting: Setting, kept: Kept, cost: Cost) -> Cost:
    """Return the cost where parameters stay sharded: a leaf is gathered, and its gradient summed.

    What XLA's partitioner sends along axes without samples depends on the model, and is not
    counted.
    """
    n, sent = setting.devices, 0.0
    if n > 1:
        sent = (KRYLOV_STEPS + OUTSIDE[1]) * (kept.gathered + kept.whole) * setting.item
    # The parameters and a vector are there as a whole.
    memory = (VECTORS * (kept.own + setting.rows / n) + 2 * kept.gathered) * setting.item
    remark = f"{cost.remark}; parameters stay sharded"
    return Cost(cost.flops / n, memory, remark=remark, sent=sent)


def kept_of(params: Params, layout: Layout) -> Kept:
    """Return where parameters are that stay sharded."""
    own, gathered, whole = 0.0, 0.0, 0.0
    arrays = [x for x in jax.tree.leaves(params) if eqx.is_array(x)]
    for x, spec in zip(arrays, layout.params or (), strict=True):
        if not eqx.is_inexact_array(x):
            continue
        names = axes_of_spec(spec)
        shares = lambda names: math.prod(layout.mesh.shape[name] for name in names)
        size = x.size * (2 if jnp.iscomplexobj(x) else 1)
        here = size / shares([name for name in names if name not in layout.names])
        own += size / shares(names)
        gathered += here if set(names) & set(layout.names) else 0.0
        whole += here
    return Kept(own, gathered, whole)
