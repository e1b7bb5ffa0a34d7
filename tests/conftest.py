"""What holds for all tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-screenshots",
        action="store_true",
        help="write the screenshots in docs/pictures (tests/web/browser, tests/report/browser)",
    )


@pytest.fixture(scope="session", autouse=True)
def bytecode_for_children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Programs that tests start find their modules compiled, as after any installation, whatever the environment asks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("bytecode")))
        yield


@pytest.fixture(scope="session", autouse=True)
def interrupts_reach_children() -> Iterator[None]:
    """A shell starts what runs in its background with SIGINT ignored, and programs that tests start and interrupt would inherit
    that.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
