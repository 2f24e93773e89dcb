"""CPU seconds that compare: on one core, because threads that wait for each other would count."""

import os


def stay_on_one_core() -> None:
    """Keep this process on the first core that it may use, where the system can do so."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
