"""How an 11 x 11 matrix, a product of factors, moves in answer to its middle entry: tangent
kernels, Euclidean and natural, of depth 1, 2, 3.

`python examples/kernels.py picture.png` saves the maps there (by default `pictures/kernels.png`):
each the kernel and its discrete version.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from _pictures import picture_path

import pullback as pb

jax.config.update("jax_enable_x64", True)


def product(factors):
    return factors[0] if len(factors) == 1 else product([factors[0] @ factors[1], *factors[2:]])


def main(path: Path) -> int:
    full = pb.Composite(product, lambda z: z[5, 5])
    seen = jnp.zeros((11, 11), bool).at[5, 5].set(True)
    masked = pb.Composite(product, lambda z: z[5, 5], pb.metric.Masked(pb.metric.Euclidean(), seen))
    maps, worst, blind = {}, 0.0, {}
    for depth in (1, 2, 3):
        factors = [
            jnp.asarray(w)
            for w in np.random.default_rng(depth).standard_normal((depth, 11, 11)) / np.sqrt(11)
        ]
        euclidean, natural, other = (
            pb.ntk(full, factors),
            pb.natural_ntk(full, factors),
            pb.natural_ntk(masked, factors),
        )
        column, blind[depth] = natural.column(5, 5), other.column(5, 5)
        maps |= {
            f"L={depth} Euclidean": euclidean.column(5, 5),
            f"L={depth}, step 0.1": euclidean.discrete_column(5, 5, step=0.1),
        }
        maps |= {
            f"L={depth} natural": column,
            f"L={depth} natural, step 0.01": natural.discrete_column(5, 5, step=0.01),
        }
        maps |= {f"L={depth} natural, masked": blind[depth]}
        worst = max(worst, float(jnp.max(jnp.abs(column.at[5, 5].add(-1.0)))))
        off = float(jnp.max(jnp.abs(blind[depth].at[5, 5].add(-1.0))))
        print(
            f"depth {depth}: natural kernel off the identity column by {worst:.1e}; with the "
            f"metric masked to one entry by {off:.1e}"
        )
    print(f"full metric: {natural.reason}")
    print(f"masked metric: {other.reason}")
    pb.plot.kernels(maps, columns=5)[0].savefig(path, dpi=150)
    return 0 if worst < 1e-12 else 1


if __name__ == "__main__":
    sys.exit(main(picture_path("kernels.png")))
