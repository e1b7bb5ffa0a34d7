"""The page to hand on: one file that says the same without any network."""

from __future__ import annotations

from pathlib import Path

from web.browser.test_accessibility import violations
from web.browser.visiting import Visitor


def test_the_saved_page_says_the_same_from_disk_without_a_network(visit: Visitor, tmp_path: Path):
    page = visit.open("?model=Qwen/Qwen3-30B-A3B&gpu=H100-80GB&vllm=0.26.0&tp=2&context=32k&concurrency=8")
    visit.verdict("8 requests of 32,000 tokens fit at once")
    figures, serve = visit.figures(), page.locator(".vc-serve").inner_text()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as page").click()
    assert saved.value.suggested_filename == "vllm-capacity-Qwen3-30B-A3B.html"
    path = tmp_path / saved.value.suggested_filename
    saved.value.save_as(path)

    page = visit.open_file(str(path))
    texts = page.eval_on_selector_all("data", "all => all.map(one => one.value)")
    values = [float(text) for text in texts if _number(text)]
    for name, figure in figures.items():
        assert any(abs(value - figure) < 1e-6 for value in values), name
    text = page.locator("body").inner_text()
    assert "It starts" in text
    assert "8 requests of 32,000 tokens fit at once" in text
    assert serve in text
    loaded = page.evaluate("performance.getEntriesByType('resource').map(entry => entry.name)")
    assert [name for name in loaded if name.startswith("http")] == []
    assert visit.outbound == []
    assert visit.errors == []
    assert violations(visit.open_file(str(path), for_axe=True)) == []


def test_the_saved_comparison_holds_its_rows(visit: Visitor, tmp_path: Path):
    page = visit.open("?model=Qwen/Qwen3-8B&gpu=L40S&vllm=0.26.0&context=8k&concurrency=4&tab=layouts")
    row = page.locator(".vc-cards tbody tr").first
    row.wait_for()
    tokens = row.locator("td[data-label='KV cache tokens']").inner_text()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as page").click()
    path = tmp_path / "layouts.html"
    saved.value.save_as(path)
    text = visit.open_file(str(path)).locator("body").inner_text()
    assert tokens in text
    assert "vllm-capacity size --concurrency 4 --no-variants --gpu L40S --every-layout" in text
    assert visit.outbound == []
    assert visit.errors == []


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
