"""Text from strangers stays text: in a link, a config, a command and a log."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

from web.browser.test_log import FAILED, drop
from web.browser.visiting import Visitor

MARKUP = (
    "<img src=x onerror=window.hacked=1></script><script>window.hacked=1</script>`${window.hacked=1}`{{7*7}}"
)


def hacked(visit: Visitor) -> bool:
    return bool(visit.page.evaluate("'hacked' in window"))


def test_markup_in_a_link_is_shown_as_text(visit: Visitor):
    text = quote(MARKUP)
    page = visit.open(f"?model={text}&gpu={text}&vllm={text}&flags={text}&tp={text}&context={text}&{text}=1")
    visit.verdict("No answer yet")
    assert "<img src=x" in page.locator("#verdict").inner_text()
    assert not hacked(visit)
    page.get_by_role("button", name="Copy link").click()
    assert not hacked(visit)


def test_markup_in_a_config_is_shown_as_text(visit: Visitor):
    page = visit.open("?vllm=0.26.0")
    page.get_by_role("button", name="Paste config.json").click()
    visit.field("config").fill(json.dumps({"architectures": [MARKUP], "model_type": MARKUP}))
    visit.verdict("No answer yet")
    assert "<img" in visit.problem("config")
    assert not hacked(visit)


def test_markup_in_a_log_is_shown_as_text(visit: Visitor, tmp_path: Path):
    log = tmp_path / "run.log"
    lines = FAILED.read_text().replace("meta-llama/Llama-3.3-70B-Instruct", MARKUP.replace("`", ""))
    log.write_text(lines)
    page = visit.open("?tab=log")
    drop(visit, log)
    page.locator(".vc-log .vc-verdict, .vc-log [role=status]:not(:empty)").first.wait_for()
    page.wait_for_timeout(300)
    assert not hacked(visit)
