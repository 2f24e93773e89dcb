"""From claims to a report: run them in processes, keep what is finished, say what holds on the terminal, in JSON and in one HTML page."""

from ._html import page as page
from ._markdown import summary as summary
from ._run import Report as Report
from ._run import publish as publish
from ._run import reproduce as reproduce
from ._terminal import Screen as Screen
from ._terminal import listing as listing
from ._terminal import show as show
