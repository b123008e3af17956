"""Exit statuses, and the errors that stand for them."""

from __future__ import annotations

FOUND, BAD_INPUT, NOTHING_FITS, MISSING, NOT_ALL, INTERRUPTED = 0, 2, 3, 4, 5, 130

WORDS = """\
Exit status:

\b
  0  found
  2  bad input; one or two lines on stderr say which number and what would do
  3  nothing fits: no plan can run, or what was asked for needs more memory than there is
  4  something has to be installed first; the line on stderr says what
  5  some submissions were refused, or stopped before their end; or this machine is not ready; what is printed says why"""


class Missing(Exception):  # noqa: N818  # what it says is the name
    """Something has to be installed before the command can run."""
