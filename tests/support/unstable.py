# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Tests that fail and then pass: they are shown with their failure, and only a few of them are borne.

Thousands of tests start real processes on a shared machine, and `./dev test` gives each a second run. A
test of this list has a fault all the same, its own or the product's.
"""

from __future__ import annotations

import pytest

MOST = 5
"""With more of them a run has failed."""


def first_failures(reporter: pytest.TerminalReporter) -> list[pytest.TestReport]:
    """One report for each test that was run again."""
    reports: list[pytest.TestReport] = reporter.stats.get("rerun", [])
    return list({report.nodeid: report for report in reports}.values())


def show(reporter: pytest.TerminalReporter) -> None:
    """Print them where nobody overlooks them."""
    found = first_failures(reporter)
    if not found:
        return
    reporter.section(f"RUN TWICE: {len(found)} tests, of at most {MOST}", sep="!", red=True, bold=True)
    for report in found:
        reporter.line(f"{report.nodeid} ({report.when}) failed with:", red=True)
        reporter.line("\n".join(report.longreprtext.splitlines()[-30:]))


def judge(session: pytest.Session) -> None:
    """Fail a run with too many of them."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter and len(first_failures(reporter)) > MOST and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
