"""Runs claims in processes, keeps finished results, and reports verdicts.

The report is shown on the terminal and written as JSON, as Markdown and as one HTML page.
"""

from .keys import vary as vary
from .publish import publish as publish
from .report import Report as Report
from .run import reproduce as reproduce
