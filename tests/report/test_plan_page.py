"""The page of a plan says what the plan's JSON says, for every kind of answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from making_pages import (
    CASES,
    COMMAND,
    curve,
    page,
    page_of_many,
    page_of_several,
    planned,
    refused,
    refused_page,
)
from reading_pages import Page, child, local, text
from vllm_capacity.answer import Plan, Status
from vllm_capacity.budget import Account
from vllm_capacity.ledger import Allocator, Component, Lifetime
from vllm_capacity.report.html import plan_page
from vllm_capacity.report.json_report import plan_to_dict
from vllm_capacity.report.palette import name_of

EVERY = pytest.mark.parametrize("case", CASES)


@EVERY
def test_the_verdict_comes_first_and_is_in_words(case: str):
    plan = planned(case)
    headline = {
        Status.STARTS: "It starts",
        Status.DOES_NOT_START: "It does not start",
        Status.TOO_CLOSE: "Too close to call",
    }[plan.verdict.status]
    (banner,) = [e for e in page(case).all("div") if (e.get("class") or "").startswith("verdict")]
    words = text(banner)
    assert headline in words
    assert plan.config.name in words
    assert plan.verdict.message in " ".join(words.split()) or not plan.verdict.message
    assert page(case).source.index("verdict ") < page(case).source.index("Key numbers")


@EVERY
def test_every_number_of_the_json_document_is_on_the_page(case: str):
    """Bytes of every term, the budget of every rank, the cache, the suggestions: by value, not by text."""
    document = plan_to_dict(planned(case))
    wanted: set[float] = {document["gpu"]["cuda_total_bytes"], document["model"]["parameters"]}
    for rank in document["ranks"]:
        if document["engine"]["kv_cache_memory_bytes"] is None:
            wanted |= {
                rank[key]
                for key in (
                    "weights_bytes",
                    "activation_peak_bytes",
                    "non_torch_bytes",
                    "runner_buffers_bytes",
                )
                if rank[key]
            }
            wanted |= {rank["available_kv_low_bytes"], rank["available_kv_high_bytes"]}
        wanted |= {rank["requested_bytes"], rank["available_kv_bytes"], rank["device_used_bytes"]}
        wanted |= {term["bytes"] for term in rank["terms"]}
    if document["kv_cache"]["groups"]:
        wanted |= {document["kv_cache"]["size_tokens"], document["kv_cache"]["max_concurrency"]}
        verdict = document["verdict"]
        wanted |= {
            verdict[key] for key in ("max_model_len_that_fits", "min_gpu_memory_utilization") if verdict[key]
        }
    wanted.add(document["verdict"]["max_gpu_memory_utilization"])
    for suggestion in document["verdict"]["suggestions"]:
        wanted |= {
            suggestion["effect"]["available_kv_bytes_delta"],
            suggestion["effect"]["kv_cache_size_tokens_delta"],
        }
    wanted |= {document["host"]["shared_memory_bytes"], document["host"]["checkpoint_bytes"]}
    assert wanted - page(case).values == set()


@EVERY
def test_key_numbers_stand_under_their_names(case: str):
    document = plan_to_dict(planned(case))
    shown = page(case).key_numbers
    tightest = min(document["ranks"], key=lambda rank: rank["num_blocks_own"])
    assert shown["--gpu-memory-utilization"] == document["engine"]["gpu_memory_utilization"]
    assert shown["In use once up"] == tightest["device_used_bytes"]
    if not document["kv_cache"]["groups"]:
        assert shown.keys() == {"--gpu-memory-utilization", "In use once up"}
        return
    assert shown["KV cache"] == document["kv_cache"]["size_tokens"]
    assert shown["Concurrency"] == document["kv_cache"]["max_concurrency"]
    assert shown.get("Largest max_model_len", 0) == (document["verdict"]["max_model_len_that_fits"] or 0)
    assert shown["Available for the KV cache"] == tightest["available_kv_bytes"]


@EVERY
def test_every_term_has_its_formula_numbers_source_and_bytes_in_one_place(case: str):
    entries = [text(item) for item in page(case).all("li")]
    for rank in planned(case).ranks:
        for term in rank.terms:
            mine = [e for e in entries if term.name in e and f"{term.n_bytes:,} B" in e]
            if not term.n_bytes and term.low == term.high:
                assert any(" ".join(term.note.split()) in e for e in mine), term.name
                continue
            wanted = [term.formula, term.expression(), term.source, term.note]
            assert any(all(" ".join(w.split()) in e for w in wanted) for e in mine), term.name


@EVERY
def test_every_component_is_listed_in_the_ledger(case: str):
    summaries = [text(summary) for summary in page(case).all("summary")]
    assert len(summaries) == len(Component)
    for component in Component:
        assert any(name_of(component) in summary for summary in summaries)


@EVERY
def test_bars_are_as_wide_as_their_bytes(case: str):
    """Parts in the order of the palette, without gaps; the GPU's end where its total says."""
    plan = planned(case)
    pictures = [e for e in page(case).all("svg") if (e.get("aria-label") or "").endswith(" GiB.")]
    sums: list[dict[str, int]] = []
    for rank in plan.ranks:
        found: dict[str, int] = {}
        for term in rank.terms:
            if (
                term.n_bytes
                and term.allocator is not Allocator.HOST
                and term.lifetime is not Lifetime.RUNTIME
            ):
                found[name_of(term.component)] = found.get(name_of(term.component), 0) + term.n_bytes
        if plan.used_by_others_bytes:
            found["other processes"] = plan.used_by_others_bytes
        sums.append(found)
    scale = max(plan.device.cuda_total_bytes, *(sum(found.values()) for found in sums))
    distinct = [s for i, s in enumerate(sums) if s not in sums[:i]]
    assert len(pictures) >= len(distinct)
    for picture, expected in zip(pictures, distinct, strict=False):
        parts = [r for r in picture if local(r) == "rect" and child(r, "title") is not None]
        end = 0.0
        for part in parts:
            x, width = (float((part.get(key) or "").removesuffix("%")) for key in ("x", "width"))
            assert x == pytest.approx(end, abs=0.02)
            title = child(part, "title")
            assert title is not None
            assert width == pytest.approx(100 * expected[text(title)] / scale, abs=0.002)
            end = x + width
        assert {text(child(part, "title")) for part in parts} == set(expected)  # type: ignore[arg-type]


@EVERY
def test_the_table_beside_the_bars_says_the_same(case: str):
    """What lives on a device, by component; host memory and what only single requests need left out."""
    plan = planned(case)
    rows = {row[0]: row[1:] for row in page(case).table("Memory by component")[1:]}
    for component in Component:
        per_rank = [
            sum(
                term.n_bytes
                for term in rank.terms
                if term.component is component
                and term.allocator is not Allocator.HOST
                and term.lifetime is not Lifetime.RUNTIME
            )
            for rank in plan.ranks
        ]
        if not any(per_rank):
            assert name_of(component) not in rows
            continue
        shown = [cell.partition(" GiB")[0] for cell in rows[name_of(component)] if " GiB" in cell]
        large = {f"{n_bytes / 2**30:,.2f}" for n_bytes in per_rank if n_bytes >= 2**30 / 10}
        assert large <= set(shown), component


@EVERY
def test_the_curve_is_drawn_and_written_point_by_point(case: str):
    points = curve(case)
    drawn = [p for p in points if p.max_concurrency > 0]
    if not drawn:
        assert "Concurrency against context" not in [text(h) for h in page(case).all("h2")]
        return
    rows = page(case).table("Every point of the chart")[1:]
    assert [(row[0], row[2]) for row in rows] == [
        (f"{p.max_model_len:,}", f"{p.kv_cache_size_tokens:,}") for p in points
    ]
    assert [row[1] for row in rows] == [f"{p.max_concurrency:,.2f}" for p in points]
    assert all(
        row[3].startswith(p.status.value.replace("_", " ")) for row, p in zip(rows, points, strict=True)
    )
    (line,) = page(case).all("polyline")
    dots = [tuple(map(float, pair.split(","))) for pair in (line.get("points") or "").split()]
    assert len(dots) == len(drawn)
    assert [x for x, _ in dots] == sorted({x for x, _ in dots})
    for (_, y), (_, next_y), p, after in zip(dots, dots[1:], drawn, drawn[1:], strict=False):
        assert (next_y > y) == (after.max_concurrency < p.max_concurrency)


def test_the_answer_to_a_demand_is_part_of_the_verdict():
    asked = planned("starts").verdict.concurrency
    assert asked is not None
    words = " ".join(text(e) for e in page("starts").all("p"))
    assert f"8 requests of 32,768 tokens {'fit at once' if asked.fits else 'do not fit'}" in words
    assert "8 asked" in page("starts").source


def test_data_parallel_figures_are_said_to_be_one_engines():
    words = " ".join(text(e) for e in page("latent attention").all("p"))
    assert "12 engines, each with a KV cache" in words


def test_a_plan_says_how_well_it_is_known():
    """The same figures as docs/accuracy.md's summary (`tests/test_accuracy.py` holds both to the records)."""
    plan = planned("experts on two GPUs")
    rows = {row[0]: row[1:] for row in page("experts on two GPUs").table("How well each figure")[1:]}
    from pathlib import Path

    figures = json.loads((Path(plan_page.__code__.co_filename).parent.parent / "accuracy.json").read_text())
    for name, key in (
        ("weights", "weights"),
        ("activation peak", "activation_peak"),
        ("non-torch", "non_torch"),
    ):
        errors = figures["terms"][key]["all"]
        assert rows[name][2] == (
            f"mean {errors['mean_bytes'] / 2**20:,.1f} MiB, worst {errors['worst_bytes'] / 2**20:,.1f} MiB "
            f"in {errors['runs']} runs"
        )
    low, high = plan.tightest.budget.available_kv_low_bytes, plan.tightest.budget.available_kv_high_bytes
    assert rows["available for the KV cache"][1] == f"{low / 2**30:.2f} to {high / 2**30:.2f} GiB"
    assert rows["weights"][1] == "exact"
    (measured,) = [e for e in page("experts on two GPUs").all("ul") if "measured" in (e.get("class") or "")]
    shown = [text(item) for item in measured]
    terms = [t for t in plan.tightest.terms if t.low != t.high and t.allocator is not Allocator.HOST]
    assert len(shown) == len(terms) > 5
    for item, t in zip(shown, terms, strict=True):
        assert item.startswith(t.name)
        assert " ".join(t.note.split()) in item
    said = page("experts on two GPUs").section("How sure this is")
    assert all(f"Not measured: {what}." in said for what in plan.coverage.outside_measured)
    assert plan.coverage.outside_measured


def test_warnings_and_settings_are_on_the_page():
    for case in CASES:
        said = page(case).section("Assumptions and warnings")
        assert all(" ".join(w.split()) in said for w in planned(case).warnings)
        settings = dict(page(case).table("Settings that vLLM resolves"))
        assert settings["max_num_seqs"] == str(planned(case).engine.max_num_seqs)
    assert dict(page("given cache").table("Settings that vLLM resolves"))["NCCL_NVLS_ENABLE"] == "0"


@EVERY
def test_what_to_change_has_flags_and_computed_effects(case: str):
    suggestions = planned(case).verdict.suggestions
    said = page(case).section("What to change")
    if not suggestions:
        assert "No single change that was tried" in said
        return
    rows = page(case).table("One change at a time")[1:]
    assert len(rows) == len(suggestions)
    for row, s in zip(rows, suggestions, strict=True):
        assert row[0] == f"{' '.join(s.flags)} {s.change}"
        assert row[1] == ("starts" if s.effect.starts else "still does not start")
        assert row[3] == f"{s.effect.kv_cache_size_tokens_delta:+,}".replace("-", "−")


def test_the_sum_of_the_budget_is_the_one_of_vllm():
    plan = planned("experts on two GPUs")
    rows = {row[0]: row[1] for row in page("experts on two GPUs").table("From vLLM's share")[1:]}
    budget = plan.tightest.budget
    assert rows["less weights"] == f"{budget.totals[Account.WEIGHTS] / 2**30:,.3f} GiB"
    assert rows["less graph estimate"] == f"{budget.graph_applied_bytes / 2**30:,.3f} GiB"
    assert rows["available for the KV cache"] == f"{budget.available_kv_bytes / 2**30:,.3f} GiB"


def test_a_refused_layout_has_vllms_sentence_and_no_figures():
    words = text(refused_page().root)
    assert refused().verdict.message in words
    assert "It does not start" in words
    assert refused_page().commands == [COMMAND]
    assert not refused_page().all("polyline")


def test_pages_of_several_layouts_hold_a_column_for_each():
    seen = page_of_several()
    rows = seen.table("Memory by component")
    assert rows[0][1:] == ["tp 1: the GPU", "tp 2: each of 2 GPUs", "tp 4: each of 4 GPUs"]
    assert len(seen.all("polyline")) == 3
    assert len({(line.get("stroke"), line.get("stroke-dasharray")) for line in seen.all("polyline")}) == 3
    assert "tp 3: vLLM 0.33.0 does not start" in text(seen.root)
    assert "It starts with tp 1, tp 2, tp 4" in text(seen.root)


def test_many_kinds_of_gpus_are_spread_over_tables_that_fit_on_a_sheet():
    titles = []
    for number in (1, 2):
        head = page_of_many().table(f"Memory by component, per GPU, part {number} of 2")[0]
        assert len(head) <= 7
        assert (
            head[1:] == page_of_many().table(f"From vLLM's share to the KV cache, part {number} of 2")[0][1:]
        )
        titles += head[1:]
    bars = [
        e.get("aria-label") or ""
        for e in page_of_many().all("svg")
        if (e.get("aria-label") or "").endswith(" GiB.")
    ]
    assert [bar[:4] for bar in bars] == [title[:4] for title in titles]
    assert len(titles) == len(bars) > 6


def test_stages_that_hold_the_same_stand_together():
    titles = page("pipeline").table("Memory by component")[0][1:]
    assert titles == [
        "2 GPUs of pipeline stage 0",
        "4 GPUs of pipeline stages 1, 2",
        "2 GPUs of pipeline stage 3",
    ]


@EVERY
def test_equal_input_gives_an_equal_page(case: str):
    assert plan_page(planned(case), COMMAND, curve=curve(case)) == page(case).source


def test_a_page_without_a_curve_is_whole():
    bare = Page(plan_page(planned("starts"), COMMAND))
    assert "What to change" in [text(h) for h in bare.all("h2")]
    assert not bare.all("polyline")


def test_the_plan_itself_is_left_as_it_was():
    plan: Any = planned("starts")
    before = plan_to_dict(plan)
    plan_page(plan, COMMAND)
    assert plan_to_dict(plan) == before
    assert isinstance(plan, Plan)
