"""From examples to a report: run them, then say what holds on the terminal, in JSON and in one HTML page."""

from ._html import page as page
from ._run import Example as Example
from ._run import Outcome as Outcome
from ._run import Report as Report
from ._run import Row as Row
from ._run import run as run
from ._terminal import show as show
