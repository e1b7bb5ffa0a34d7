"""One server for all tests that need no settings of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from vllm_capacity.web.settings import WebSettings

from web.serving import Served, serving


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    with serving(WebSettings(page=False)) as served:
        yield served
