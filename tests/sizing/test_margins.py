"""The safety margins are those of the recorded runs behind docs/accuracy.md."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

TOOLS = Path(__file__).parent.parent.parent / "tools"


def test_no_margin_is_smaller_than_the_recorded_runs_say(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(TOOLS), *sys.path])
    from write_margins import TARGET, errors, p90

    stored = yaml.safe_load(TARGET.read_text())["pairs"]
    found = errors()
    assert set(stored) == set(found)
    for name, values in found.items():
        assert stored[name]["runs"] == len(values)
        assert stored[name]["bytes_of_nine_in_ten"] >= p90(values) > 0
