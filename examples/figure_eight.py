"""The figure eight, drawn: in its crossing two parametrisations have different natural gradients.

`python examples/figure_eight.py picture.png` saves the picture there (by default
`pictures/figure_eight.png`).
"""

from pathlib import Path

import jax
import numpy as np
from _pictures import picture_path

from pullback_lab import papers

jax.config.update("jax_enable_x64", True)


def main(path: Path) -> None:
    claim = papers.REGISTRY["example-2"]
    data = claim.measure().data
    claim.draw(data).savefig(path, dpi=150)
    show = lambda v: "({:.1f}, {:.1f})".format(*v)
    print(
        f"natural gradients in the crossing: {show(data['first'])} and {show(data['second'])}; "
        f"picture: {path}"
    )
    if not np.allclose(
        [data["first"], data["second"]], [[0.8, 0.4], [0.8, -0.4]], rtol=0, atol=1e-12
    ):
        raise SystemExit("They should be (0.8, 0.4) and (0.8, -0.4).")


if __name__ == "__main__":
    main(picture_path("figure_eight.png"))
