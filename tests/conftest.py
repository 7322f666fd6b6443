"""Rules of the whole test run: what needs a GPU is deselected without one, and under CI a skip is a failure."""

import os
from pathlib import Path

import pytest

IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")
HAS_GPU = Path("/proc/driver/nvidia/version").exists()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if HAS_GPU or "gpu" in (config.option.markexpr or ""):
        return
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if needing:
        config.hook.pytest_deselected(items=needing)
        items[:] = [item for item in items if item not in needing]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if IN_CI and session.exitstatus == pytest.ExitCode.OK and _skipped(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = _skipped(config)
    if not skipped:
        return
    terminalreporter.section("left out", yellow=not IN_CI, red=IN_CI)
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        terminalreporter.write_line(f"{report.nodeid}: {reason}")
    if IN_CI:
        terminalreporter.write_line("CI=true: a test that is left out counts as a failure.", red=True)


def _skipped(config: pytest.Config) -> list[pytest.TestReport]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return []  # a worker of pytest-xdist: its controller decides
    return [report for report in reporter.stats.get("skipped", []) if not hasattr(report, "wasxfail")]
