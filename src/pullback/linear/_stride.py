"""How far the path of a flow is followed at a time, and how closely on the way."""

STRIDE = 2.0
"""The longest early step in t between two solves."""
LARGEST = 3.0
"""The largest change of a logit in one Newton step: each unit changes the weights by a factor e."""
ON_THE_WAY = 1e-3
"""The tolerance before the last solve."""


def stride(now: float, t: float, largest: float, late: float = 0.25) -> float:
    """The next step in time of a flow that changes the largest logit at this speed."""
    # Late, all logits grow in proportion to t and the flow is a straight line. Both bounds grow
    # with t: on the stride itself, and on the change of the logits along it.
    longest = max(LARGEST, late * now) / max(largest, 1e-300)
    return min(max(STRIDE, late * now), longest, t - now)
