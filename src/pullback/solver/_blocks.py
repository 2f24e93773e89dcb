r"""`Blocks`: the diagonal blocks of \(G\), one per layer, each inverted exactly.

With the leaves of the parameters in blocks, \(A = [A_1, \dots, A_B]\) and \(G_B =
\mathrm{diag}(A_1^\top A_1, \dots, A_B^\top A_B)\),

\[ \delta_b = h(A_b^\top A_b)\,g_b , \qquad g_b = A_b^\top r + g_{x,b} . \]

This is **another metric**, and \(\delta\) is not the natural gradient: what one layer does to the
outputs is not known to the others, and B layers that each take the whole step overshoot. It is a
descent direction, \(g^\top\delta \ge 0\), invariant under a change of coordinates inside a block,
and certified block by block. How near it comes is `Stats.alignment`
(`pullback._natural.alignment`).
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp

from .._base.checks import error
from .._base.functions import canonical
from .._base.part import Part, join
from .._base.tree import Structure
from .._base.types import Flat
from .._rows.part import columns
from ._auto import Auto
from ._base import AbstractFactors, AbstractSolver, Block, Spectrum

BlockNames: TypeAlias = Callable[[str], str] | tuple[str, ...] | None
"""Which leaves form a block: the name from the path, beginnings of paths, or one per layer."""
EXAMPLE = 'Blocks(lambda path: path.split("[")[0])'


class BlocksFactors(AbstractFactors):
    """Factors of each block."""

    parts: tuple[Block, ...]
    compared: AbstractFactors | None
    """Factors of G itself, if the angle to its solution is to be measured."""

    @property
    def blocks(self):
        return self.parts

    @property
    def whole(self):
        return self.compared

    @property
    def spectrum(self) -> Spectrum:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The sum of the ranks, and the edges of the block with the largest condition number."""
        stacked = _stacked([block.factors.spectrum for block in self.parts])
        spread = stacked.largest / jnp.where(stacked.smallest > 0, stacked.smallest, 1.0)
        spread = jnp.where(stacked.smallest > 0, spread, -stacked.largest - 1.0)
        # NaN, of a block whose solver computes no singular values, is the largest for `argmax`.
        worst: Spectrum = jax.tree.map(lambda x: x[jnp.argmax(spread)], stacked)
        known = jnp.all(stacked.rank >= 0)
        return Spectrum(
            rank=jnp.where(known, jnp.sum(stacked.rank), -1).astype(jnp.int32),
            largest=worst.largest,
            smallest=worst.smallest,
            cutoff=worst.cutoff,
            fallback=jnp.any(stacked.fallback),
            graded=worst.graded,
        )

    def solve_lifted(self, r):
        return self._each(lambda factors, _: factors.solve_lifted(r), None)

    def solve_covector(self, g):
        return self._each(lambda factors, g: factors.solve_covector(g), g)

    def solve_both(self, r, g):
        return self._each(lambda factors, g: factors.solve_both(r, g), g)

    def damped(self, damping):
        blocks = tuple(Block(block.part, block.factors.damped(damping)) for block in self.parts)
        whole = self.compared
        return BlocksFactors(blocks, None if whole is None else whole.damped(damping))

    def project(self, eta):
        return self._each(lambda factors, eta: factors.project(eta), eta)

    @property
    def knows_row_space(self):
        return all(block.factors.knows_row_space for block in self.parts)

    @property
    def kernel_exact(self):
        return all(block.factors.kernel_exact for block in self.parts)

    @property
    def valid(self):
        return jnp.all(jnp.stack([block.factors.valid for block in self.parts]))

    def _each(self, solve: Callable[[AbstractFactors, Flat], Flat], flat: Flat | None) -> Flat:
        """Return the solutions of all blocks in one vector."""
        given = lambda block: jnp.zeros(0) if flat is None else block.part.take(flat)
        found = [solve(block.factors, given(block)) for block in self.parts]
        return join([block.part for block in self.parts], found)


class Blocks(AbstractSolver):
    """The diagonal blocks of G, by default one per layer, each inverted exactly.

    ```python
    opt = pb.NaturalGradientDescent(problem, pb.Tikhonov(1e-3), solver=pb.solver.Blocks())
    ```

    It is another metric than G, and its solution is not the natural gradient: a descent direction
    that is invariant under changes of coordinates inside a block. `Stats.alignment` bounds its
    angle to the natural gradient from above.
    """

    blocks: BlockNames = eqx.field(static=True)
    inner: AbstractSolver
    certify: bool = eqx.field(static=True)
    careful: bool = eqx.field(static=True)

    def __init__(
        self,
        blocks: Callable[[str], str] | Sequence[str] | None = None,
        inner: AbstractSolver | None = None,
        certify: bool = False,
        careful: bool = True,
    ):
        """Choose the blocks.

        **Arguments:**

        - `blocks`: a function from the path of a leaf, as `plan` prints it (`.layers[0].weight`,
            `['w']`), to the name of its block; or a list of beginnings of paths, one per block.
            Defaults to one block per layer: leaves that differ in the last part of their paths.
        - `inner`: how each block is solved; defaults to `Auto()`.
        - `certify`: whether to solve with G itself too, so that `Stats.alignment` is the cosine and
            not a lower bound of it. It costs what the natural gradient costs: for checkpoints.
        - `careful`: whether to compile what a block rarely needs (`AbstractSolver.quick`).
        """
        if blocks is not None and not callable(blocks):
            given = blocks
            blocks = () if isinstance(blocks, str) else tuple(blocks)
            if not blocks or not all(isinstance(prefix, str) for prefix in blocks):
                wanted = "a function from path to name, or a list of beginnings of paths"
                raise error("Blocks", "blocks", given, wanted, 'Blocks([".encoder", ".head"])')
        inner = Auto() if inner is None else inner
        if not isinstance(inner, AbstractSolver) or inner.inverts_blocks:
            wanted = "a solver of one block, one of pullback.solver"
            raise error("Blocks", "inner", inner, wanted, "Blocks(inner=pullback.solver.Dual())")
        if not isinstance(certify, bool):
            raise error("Blocks", "certify", certify, "True or False", "Blocks(certify=True)")
        self.blocks = canonical(blocks)
        self.inner = inner
        self.certify = certify
        self.careful = careful

    def check(self, inverse):
        self.inner.check(inverse)

    @property
    def inverts_blocks(self):
        return True

    @property
    def quick(self):
        return Blocks(self.blocks, self.inner, self.certify, careful=False)

    def factorise(self, rows, inverse):
        def factors(solver: AbstractSolver, rows) -> AbstractFactors:
            solver, planned = solver.resolve(rows, inverse)
            return (solver if self.careful else solver.quick).factorise(planned, inverse)

        parts = partition(rows.structure, self.blocks)
        found = tuple(Block(part, factors(self.inner, columns(rows, part))) for part in parts)
        return BlocksFactors(found, factors(Auto(), rows) if self.certify else None)


def partition(whole: Structure, blocks: BlockNames) -> tuple[Part, ...]:
    """Return the blocks of the parameters, in the order of their first leaves."""
    paths, names = whole.paths, whole.names
    if callable(blocks):
        labels = [_label(blocks, name) for name in names]
    elif blocks is not None:
        labels = [_prefix(blocks, name) for name in names]
        if unused := [prefix for prefix in blocks if prefix not in labels]:
            raise error("Blocks", "blocks", list(blocks), f"beginnings of {_some(names)}; none "
                        f"begins with {unused[0]!r}")  # fmt: skip
    else:
        labels = [jax.tree_util.keystr(path[:-1]) for path in paths]
        if len(names) > 1 and len(set(labels)) == 1:
            wanted = f"given: {_some(names)} lie side by side, and would be one block"
            raise error("Blocks", "blocks", None, wanted, "Blocks(lambda path: path)")
    leaves: dict[str, list[int]] = {}
    for number, label in enumerate(labels):
        leaves.setdefault(label, []).append(number)
    return tuple(Part(whole, tuple(found)) for found in leaves.values())


def _label(blocks: Callable[[str], str], name: str) -> str:
    label = blocks(name)
    if not isinstance(label, str):
        wanted = f"a function that returns the name of a block; for {name!r} it returned {label!r}"
        raise error("Blocks", "blocks", blocks, wanted, EXAMPLE)
    return label


def _prefix(prefixes: tuple[str, ...], name: str) -> str:
    """Return the longest of the beginnings of a path."""
    found = [prefix for prefix in prefixes if name.startswith(prefix)]
    if not found:
        wanted = f"beginnings of all paths; {name!r} begins with none"
        raise error("Blocks", "blocks", list(prefixes), wanted)
    return max(found, key=len)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _stacked(spectra: Sequence[Spectrum]) -> Spectrum:
    return jax.tree.map(lambda *x: jnp.stack(x), *spectra)
