"""A log is dropped, chosen or pasted."""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm_capacity.diagnosis.diagnose import diagnose
from vllm_capacity.logs.reader import read_log

from web.browser.visiting import Visitor

LOGS = Path(__file__).parents[2] / "data" / "logs"
FAILED = LOGS / "scenarios" / "load_weights_do_not_fit.log"
DROP = """async ([name, bytes]) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([new Uint8Array(bytes)], name));
  const zone = document.querySelector('.vc-upload');
  for (const kind of ['dragenter', 'dragover'])
    zone.dispatchEvent(new DragEvent(kind, {bubbles: true, cancelable: true, dataTransfer: transfer}));
  await new Promise(done => setTimeout(done, 50));
  const cover = zone.querySelector('.q-uploader__dnd');
  cover.dispatchEvent(new DragEvent('drop', {bubbles: true, cancelable: true, dataTransfer: transfer}));
}"""
"""What a browser does when a file is let go over the zone."""


def drop(visit: Visitor, log: Path) -> None:
    visit.page.evaluate(DROP, [log.name, list(log.read_bytes())])


def headline(log: Path) -> str:
    with log.open("rb") as file:
        finding = diagnose(read_log(file)).finding
    assert finding is not None
    return finding.headline


def test_a_dropped_log_gives_the_cause_the_evidence_and_what_helps(visit: Visitor):
    page = visit.open()
    page.get_by_role("button", name="Read a log").click()
    drop(visit, FAILED)
    page.locator(".vc-log .vc-does_not_start", has_text=headline(FAILED)).wait_for()
    assert page.get_by_role("heading", name="What helps, cheapest first").is_visible()
    assert page.get_by_role("heading", name="Evidence").is_visible()
    assert visit.errors == []


@pytest.mark.parametrize("name", ["carrier_gzip.log.gz", "one_request_hybrid_manager_off.log"])
def test_a_chosen_file_is_read_and_the_next_one_after_it(visit: Visitor, name: str):
    page = visit.open("?tab=log")
    page.get_by_label("Log file").set_input_files(LOGS / "scenarios" / name)
    page.locator(".vc-log", has_text=headline(LOGS / "scenarios" / name)).wait_for()
    page.get_by_label("Log file").set_input_files(FAILED)
    page.locator(".vc-log .vc-does_not_start", has_text=headline(FAILED)).wait_for()


def test_a_pasted_log_is_read_too(visit: Visitor):
    page = visit.open("?tab=log")
    page.get_by_label("Or paste it").fill(FAILED.read_text())
    page.locator(".vc-log .vc-does_not_start", has_text=headline(FAILED)).wait_for()


@pytest.mark.parametrize("content", ["hello\n", "\0\1\2" * 100, "{}" * 1000])
def test_what_is_no_log_is_said_in_one_line(visit: Visitor, tmp_path: Path, content: str):
    other = tmp_path / "other.txt"
    other.write_text(content)
    page = visit.open("?tab=log")
    drop(visit, other)
    page.locator(".vc-log [role=status]", has_text="nothing in these").wait_for()
    assert "Traceback" not in page.content()
    drop(visit, FAILED)
    page.locator(".vc-log .vc-does_not_start").wait_for()
