"""Pages: every one is in the navigation, what is generated is what its script writes, and nothing points into the void."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from vllm_capacity.cli import run

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_site  # noqa: E402
import memory_pictures  # noqa: E402
import schema_page  # noqa: E402
import write_docs  # noqa: E402
from doc_examples import BLOCK, PAGES  # noqa: E402

DOCS = ROOT / "docs"
OTHERS = {
    "docs/accuracy.md",
    "docs/releases.md",
    "capacity/report/accuracy.json",
    "capacity/sizing/margins.yaml",
}
"""Held by tests of their own."""


def navigation(node: Any) -> list[str]:
    if isinstance(node, str):
        return [node]
    children = node.values() if isinstance(node, dict) else node
    return [name for child in children for name in navigation(child)]


def test_every_page_is_in_the_navigation_once() -> None:
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    listed = navigation(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    assert sorted(listed) == sorted(pages), "mkdocs.yml: nav"


@pytest.mark.parametrize("name", [name for name in write_docs.WRITTEN if name not in OTHERS])
def test_a_generated_file_is_what_its_script_writes(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == write_docs.WRITTEN[name](), (
        f"run: python tools/write_docs.py {name}"
    )


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_facts_inside_a_page_are_those_of_now(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("<!-- fact: ") == len(write_docs.FACT.findall(text)), "a fact without its end"
    assert write_docs.with_facts(text) == text, f"run: python tools/write_docs.py {page.relative_to(ROOT)}"


def test_check_names_what_differs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "docs/plan.schema.json"
    assert write_docs.main(["--check", name]) == 0
    monkeypatch.setitem(write_docs.WRITTEN, name, lambda: "{}\n")
    assert write_docs.main(["--check", name]) == 1
    assert capsys.readouterr().out == f"differs: {name}\n"
    assert (ROOT / name).read_text(encoding="utf-8") == schema_page.SCHEMAS["plan"](), (
        "--check writes nothing"
    )


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_point_to_files_and_headings_that_exist(page: Path) -> None:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.is_file(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(path), f"{page.name}: {target}"


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("name", schema_page.SCHEMAS)
def test_a_schema_file_is_what_the_command_prints(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", name]) == 0
    assert (DOCS / f"{name}.schema.json").read_text(encoding="utf-8") == capsys.readouterr().out


def test_every_key_of_the_json_is_explained() -> None:
    text = (DOCS / "json-schema.md").read_text(encoding="utf-8")
    assert not re.findall(r"^\| `\w+` \| .* \|  \|$", text, re.MULTILINE)
    assert not re.findall(r"^\| `\w+` \| .* \| Bytes\. \|$", text, re.MULTILINE)


def test_nothing_refers_to_notes_outside_of_the_repository() -> None:
    """Docs, code and tools point into the repository only."""
    for folder in ("capacity", "validate", "tools", "docs", "tests", "benchmarks", ".ci"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".md", ".yaml", ".yml", ".sh"} or path.name == "run":
                text = path.read_text(encoding="utf-8")
                assert not re.search(r"shared/(design|style|reference|data|prototypes)\b", text), (
                    path.relative_to(ROOT)
                )


def test_pictures_state_figures_of_plans() -> None:
    """The requested share and the KV cache of both accountings, read off the picture."""
    seen = memory_pictures.numbers((DOCS / "pictures" / "two-accountings.svg").read_text(encoding="utf-8"))
    for version in memory_pictures.TWO_ACCOUNTINGS:
        answer = memory_pictures.planned(memory_pictures.LLAMA_8B, gpu="H100-80GB", vllm_version=version)
        budget = answer.tightest.budget
        assert {f"{n / 2**30:.2f}" for n in (budget.requested_bytes, budget.available_kv_bytes)} <= seen


def test_a_site_that_loads_from_elsewhere_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="https://vllm.ai">fine</a><script src="https://cdn.example/x.js"></script>'
    )
    (tmp_path / "b.css").write_text("@import url(//fonts.example/css); body { background: url(own.png) }")
    (tmp_path / "c.html").write_text('<link rel="canonical" href="https://here.example/"><img src="own.svg">')
    assert list(check_site.loads_elsewhere(tmp_path)) == [
        "a.html: https://cdn.example/x.js",
        "b.css: //fonts.example/css",
    ]
