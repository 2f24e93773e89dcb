"""Processes that run claims, one claim at a time each. A process that dies takes its claim with it
and nothing else.

The processes are started afresh (`spawn`), because JAX does not survive a fork. They leave Ctrl-C
to the process that started them, and end when it ends, however it ends.
"""

import collections
import importlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..papers import Budget

# LAPACK's own threads fight with those of the other process.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}


class Worker:
    """A process and what it is doing."""

    def __init__(self, registry: str, folder: Path, budget: Budget):
        """Start it."""
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        arguments = (other, registry, folder, budget, os.getpid())
        self.process = context.Process(target=_work, args=arguments, daemon=True)
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        main = threading.current_thread() is threading.main_thread()
        before = (
            signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
        )  # inherited: no traceback from a process that starts
        try:
            self.process.start()
        finally:
            if main:
                signal.signal(signal.SIGINT, before)
        other.close()
        self.claim: str | None = None
        self.since = 0.0

    def take(self, name: str) -> None:
        """Begin with a claim."""
        self.claim, self.since = name, time.monotonic()
        try:
            self.connection.send(name)
        except OSError:
            pass  # it has died already, which shows when it is listened to

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        self.connection.close()
        if self.process.is_alive():
            self.process.terminate()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _work(connection: Any, registry: str, folder: Path, budget: Budget, parent: int) -> None:
    """The life of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    import jax

    jax.config.update("jax_enable_x64", True)
    from .perform import perform
    from .result import save

    claims = importlib.import_module(registry).claims()
    while True:
        try:
            name = connection.recv()
        except (EOFError, OSError):
            return  # closed, or reset by a process that was killed with words of ours unread
        result, pictures = perform(claims[name], budget)
        try:
            save(result, folder, pictures)
            trouble = None
        except (OSError, TypeError) as error:
            trouble = f"its result could not be written: {error}"
        try:
            connection.send(trouble)
        except OSError:
            return  # nobody is there to be told


def _watch(parent: int) -> None:
    """End with the process that started this one."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def run_all(
    names: Iterable[str],
    start: Callable[[], Worker],
    workers: int,
    finished: Callable[[str, str | None], Any],
    tick: Callable[[list[Worker]], Any] = lambda workers: None,
) -> None:
    """Run claims in this order, several at a time."""
    queue, crew = collections.deque(names), []
    try:
        while queue or any(worker.claim for worker in crew):
            if queue and len(crew) < workers:
                crew.append(start())
            for worker in crew:
                if worker.claim is None and queue:
                    worker.take(queue.popleft())
            tick(crew)
            busy = {worker.connection: worker for worker in crew if worker.claim}
            # While processes are still to be started, no time is spent waiting.
            patience = 0.0 if queue and len(crew) < workers else 0.2
            for connection in multiprocessing.connection.wait(list(busy), timeout=patience):
                worker = busy[connection]  # pyright: ignore[reportArgumentType]
                name, worker.claim = worker.claim, None
                try:
                    trouble = worker.connection.recv()
                except (EOFError, OSError):
                    worker.process.join(5)
                    trouble = f"its process ended with code {worker.process.exitcode}"
                    worker.stop()
                    crew.remove(worker)
                finished(name or "", trouble)
    finally:
        for worker in crew:
            worker.stop()
