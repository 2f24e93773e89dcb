"""What `fit` warns of while it runs, each once: see `Watch`.

A rise of the loss. If every step has the same batch, and the optimiser records the loss after it:
from step 10 on, five losses in a row that are more than 3 times the first one. A rule that goes up
in its first steps and comes down again is not meant, and no noise is in the way. Otherwise: ten
losses in a row, each of which is more than twice the largest of the first ten. Noise that is as
large at the end as at the beginning cannot do that. In any case a loss of 1e3 times the first one.

A held-out loss that departs. The looks are cut into blocks from the end, at least 5 looks and about
a twentieth of all, and each block has its median. The last block departs from the best one if the
held-out loss has risen by a fifth, and by more than 4 times the median change between two looks
(both in logarithms if the losses are positive), while the training loss has fallen by a tenth. A
steady rise of one unit per look passes the second bound after a block; white noise has medians of
blocks within 2 or 3 units of each other.
"""

from collections import deque
from typing import Any

import equinox as eqx
import jax
import numpy as np

from .figure import HELD_OUT
from .history import History
from .warn import warn

STALLED = 20
"""`fit` warns after so many steps in a row that were not taken."""
RISEN = 1e3
"""`fit` warns when the loss is so many times the first one."""
SETTLED, CLEARLY = 10, 5
"""The number of first losses, and the number of last ones with the same batch in every step."""
BLOCK, BLOCKS, FEWEST = 5, 20, 3
"""The least number of looks in a block, about how many blocks there are, and at least."""
RISE, FALL, NOISE = 0.2, 0.1, 4.0


class Watch:
    """Counts and compares the rows of a run, and warns."""

    def __init__(self, same: bool, history: History):
        """Start from a history; `same` tells whether all steps have the same batch."""
        self.same = same
        self.warned: set[str] = set()
        self.shapes: Any = None
        self.idle = 0
        self.first: list[float] = []
        self.last: deque[float] = deque(maxlen=SETTLED)
        self.looks: list[tuple[int, float, float]] = []
        self.quiet = True
        if len(history):
            self.rows(history)
        self.quiet = False

    def once(self, about: str, words: str) -> None:
        """Warn, unless it was done before."""
        if about not in self.warned and not self.quiet:
            self.warned.add(about)
            warn(words)

    def batch(self, data: Any, step: int) -> None:
        """Warn of batches that change their shape."""
        describe = lambda x: (x.shape, str(x.dtype)) if eqx.is_array(x) else x
        shapes = jax.tree.map(describe, data)
        if self.shapes is not None and shapes != self.shapes:
            words = f"the batches change their shape at step {step}"
            self.once("shapes", f"{words}: each new shape is compiled anew.")
        self.shapes = shapes

    def rows(self, rows: History) -> None:
        """Warn of a run that gets nowhere, goes up, or departs from held-out data."""
        counted = "accepted" in rows
        for step, taken in zip(rows["step"], rows["accepted"], strict=True) if counted else ():
            self.idle = 0 if taken else self.idle + 1
            if self.idle == STALLED:
                self.once(
                    "idle",
                    f"the last {STALLED} steps were not taken, at step {step + 1}: the run has "
                    "converged, or the step rule is too bold.",
                )
        self._rise(rows)
        if HELD_OUT in rows:
            self._departure(rows)

    def _rise(self, rows: History) -> None:
        """Warn of a loss that rises."""
        losses = rows.losses.astype(float)
        if not self.first:
            self.first.append(float(rows["loss"][0]))
        self.first.extend(losses[: SETTLED - len(self.first)].tolist())
        joined = np.concatenate([self.last, losses])
        begun = int(rows["step"][0]) - len(self.last)
        self.last.extend(losses.tolist())
        exact = self.same and "loss_after" in rows
        window = CLEARLY if exact else SETTLED
        start = self.first[0] if exact else float(np.fmax.reduce(self.first))
        bound = start + (2 if exact else 1) * abs(start)
        # Below rounding there is no telling: a loss of 1e-30 may become one of 1e-28.
        eps = float(np.finfo(np.result_type(rows.losses, np.float16)).eps)
        high = joined > max(bound, eps)
        # The first steps do not count, and with noise their losses are compared with later ones.
        high = high[max(0, SETTLED - (window if exact else 0) - begun) :]
        lasting = np.convolve(high, np.ones(window), "valid") == window if high.any() else high
        if lasting.any() or losses[-1] > RISEN * max(abs(self.first[0]), 1.0):
            self.once(
                "rising",
                f"the loss has risen from {self.first[0]:.3g} to {losses[-1]:.3g}: take shorter "
                + (
                    "steps, e.g. NaturalGradientDescent(..., step=pullback.step.LineSearch())."
                    if self.same
                    else "steps, e.g. NaturalGradientDescent(..., step=0.1), and damp, "
                    "inverse=pullback.Tikhonov(1e-3): a step fits the noise of its batch."
                ),
            )

    def _departure(self, rows: History) -> None:
        """Warn of a held-out loss that rises while the training loss falls."""
        fine = np.flatnonzero(np.isfinite(rows[HELD_OUT]) & np.isfinite(rows.losses))
        for i in fine:
            self.looks.append((int(rows["step"][i]), float(rows[HELD_OUT][i]), rows.losses[i]))
            # In a long run not every look is worth the comparison.
            if len(self.looks) % max(1, len(self.looks) // (2 * BLOCKS)) == 0:
                words = departed(self.looks)
                if words is not None:
                    self.once("departure", words)


def departed(looks: list[tuple[int, float, float]]) -> str | None:
    """Return how a held-out loss has departed from the training loss, in words, if it has."""
    size = max(BLOCK, len(looks) // BLOCKS)
    count = len(looks) // size
    if count < FEWEST:
        return None
    steps, held_out, training = np.asarray(looks[-count * size :], float).T
    held, trained = (np.median(x.reshape(count, size), axis=1) for x in (held_out, training))
    best = int(np.argmin(held))
    if best == count - 1:
        return None
    if held[-1] - held[best] <= RISE * abs(held[best]):
        return None
    if trained[best] - trained[-1] <= FALL * abs(trained[best]):
        return None
    # Noise is proportional to a positive loss.
    scale = np.log if (held_out > 0).all() else np.asarray
    change = np.abs(np.diff(scale(held_out)))
    noise = max(np.median(change), np.median(change[best * size :]))
    if scale(held[-1]) - scale(held[best]) <= NOISE * noise:
        return None
    return (
        f"the held-out loss has risen from {held[best]:.3g} (about step "
        f"{int(steps[best * size + size // 2]) + 1}) to {held[-1]:.3g}, while the training loss "
        f"fell from {trained[best]:.3g} to {trained[-1]:.3g}: the model fits the samples and "
        "nothing else. Take more or new samples, e.g. a function of a key for `batches`, or end "
        'earlier, fit(..., until=pullback.until.Plateau(0.0, 100, "validation")).'
    )
