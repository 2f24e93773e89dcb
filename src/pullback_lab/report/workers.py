"""Processes that run claims, each one claim at a time.

If a process dies, only its claim is lost. The processes are spawned, because JAX does not survive
a fork. They ignore Ctrl-C, which is handled by the parent, and exit when the parent exits.
"""

import collections
import enum
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from ..papers import Budget, Claim

# The threads of LAPACK in one process compete with those of the others.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
SECONDS_TO_STOP = 5.0


class Ending(enum.Enum):
    """How the run of a claim ended."""

    SAVED = "its result was written"
    UNSAVED = "its result could not be written"
    DIED = "its process ended"


class Task(NamedTuple):
    """A claim to be run."""

    name: str
    folder: Path
    """Where its result is written."""
    budget: Budget


class Message(NamedTuple):
    """How the run of a claim ended, and a detail for the user if it ended badly."""

    ending: Ending
    detail: str = ""


class Channel(Protocol):
    """The end of a pipe that a worker uses."""

    def recv(self) -> Task:
        """The next task; raises `EOFError` or `OSError` if the pipe is closed."""
        ...

    def send(self, obj: Message, /) -> None:
        """Send a message to the parent."""
        ...


class Worker:
    """A process that runs claims, and what it runs now."""

    def __init__(self, claims: Mapping[str, Claim]):
        """Start the process; `claims` must be a registry, which can be pickled."""
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        arguments = (other, claims, os.getpid())
        self.process = context.Process(target=work, args=arguments, daemon=True)
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        # The child inherits the handler, so that Ctrl-C prints no traceback while it starts.
        main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
        try:
            self.process.start()
        finally:
            if main:
                signal.signal(signal.SIGINT, before)
        other.close()
        self.task: Task | None = None
        self.since = 0.0

    @property
    def claim(self) -> str | None:
        """The name of the claim that it runs now."""
        return self.task and self.task.name

    def take(self, task: Task) -> None:
        """Begin a task."""
        self.task = task
        self.since = time.monotonic()
        try:
            self.connection.send(task)
        except OSError:
            pass  # The process is dead; `finish` reports that.

    def finish(self) -> Message:
        """Wait for the end of the task; a process that died is stopped."""
        self.task = None
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self.process.join(SECONDS_TO_STOP)
            code = self.process.exitcode
            self.stop()
            return Message(Ending.DIED, f"{Ending.DIED.value} with code {code}")

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        self.connection.close()
        if self.process.is_alive():
            self.process.terminate()
        self.process.join(SECONDS_TO_STOP)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def work(channel: Channel, claims: Mapping[str, Claim], parent: int) -> None:
    """The main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()
    import jax

    jax.config.update("jax_enable_x64", True)
    from .perform import perform
    from .result import save

    while True:
        try:
            task = channel.recv()
        except (EOFError, OSError):
            return  # The pipe was closed, or reset because the parent was killed.
        result, pictures = perform(claims[task.name], task.budget)
        try:
            save(result, task.folder, pictures)
            message = Message(Ending.SAVED)
        except (OSError, TypeError) as error:
            message = Message(Ending.UNSAVED, f"{Ending.UNSAVED.value}: {error}")
        try:
            channel.send(message)
        except OSError:
            return  # The parent is gone.


def _exit_with(parent: int) -> None:
    """Exit when the parent process exits."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def run_all(
    tasks: Iterable[Task],
    start: Callable[[], Worker],
    workers: int,
    finished: Callable[[Task, Message], Task | None],
    tick: Callable[[list[Worker]], None] = lambda workers: None,
) -> None:
    """Run tasks in this order, several at a time.

    `finished` may return a further task, which the same process runs next: what it compiled for
    the one before serves it too.
    """
    queue = collections.deque(tasks)
    crew: list[Worker] = []
    try:
        while queue or any(worker.task for worker in crew):
            if queue and len(crew) < workers:
                crew.append(start())
            for worker in crew:
                if worker.task is None and queue:
                    worker.take(queue.popleft())
            tick(crew)
            # No time is spent waiting while there are processes to be started.
            seconds = 0.0 if queue and len(crew) < workers else 0.2
            for worker, task in _ready(crew, seconds):
                message = worker.finish()
                further = finished(task, message)
                if message.ending is Ending.DIED:
                    crew.remove(worker)
                    if further is not None:
                        queue.appendleft(further)
                elif further is not None:
                    worker.take(further)
    finally:
        for worker in crew:
            worker.stop()


def _ready(crew: list[Worker], seconds: float) -> list[tuple[Worker, Task]]:
    """Workers whose tasks have ended, with those tasks, after at most some seconds."""
    busy = {id(worker.connection): (worker, worker.task) for worker in crew if worker.task}
    connections = [worker.connection for worker, _ in busy.values()]
    ready = multiprocessing.connection.wait(connections, timeout=seconds)
    return [busy[id(connection)] for connection in ready]
