"""What holds for all tests."""

from __future__ import annotations

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
