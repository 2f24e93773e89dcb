"""From claims to a report: run them in processes, keep what is finished, say what holds on the
terminal, in JSON and in one HTML page.
"""

from .html import page as page
from .markdown import summary as summary
from .run import Report as Report
from .run import publish as publish
from .run import reproduce as reproduce
from .terminal import Screen as Screen
from .terminal import listing as listing
from .terminal import show as show
