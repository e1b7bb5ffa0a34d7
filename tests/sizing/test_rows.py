"""Rows of `size`: equal to `plan`, enough for the demand, no cheaper layout missed; prices, boxes, order."""

from __future__ import annotations

import csv
import io
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asking import GPT_OSS, LLAMA_8B, answered
from vllm_capacity.answer import Status
from vllm_capacity.cli import run
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.gpus import find_device
from vllm_capacity.inputs.models import load_model
from vllm_capacity.releases import newest_release
from vllm_capacity.report.size_data import answer_to_csv, answer_to_dict, serve_line
from vllm_capacity.sizing.engine_capacity import blocks_for
from vllm_capacity.sizing.margins import safety_margin
from vllm_capacity.sizing.nodes import Node, choose_nodes, purchase
from vllm_capacity.sizing.price_file import read_prices
from vllm_capacity.sizing.row import Row
from vllm_capacity.sizing.variants import stem, variants

LOADS = {
    "gpt-oss": (
        "--model",
        GPT_OSS,
        "--max-model-len",
        "32K",
        "--concurrency",
        "64",
        "--gpu",
        "H100,L40S,RTX-4090,GB10",
        "--all",
    ),
    "state space": (
        "--model",
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "--max-model-len",
        "32K",
        "--concurrency",
        "64",
        "--gpu",
        "H200,H100",
    ),
    "windows, workload": (
        "--model",
        "google/gemma-3-27b-it",
        "--prompt-tokens",
        "3000",
        "--output-tokens",
        "500",
        "--output-p95",
        "2000",
        "--concurrent-users",
        "200",
        "--prefix-share",
        "0.6",
        "--node",
        "l40sx4,h100x8",
    ),
    "small GPU": (
        "--model",
        LLAMA_8B,
        "--max-model-len",
        "4096",
        "--concurrency",
        "4",
        "--gpu",
        "RTX-4080,A10,T4",
    ),
}


def rows_of(load: str) -> list[tuple[Any, Row]]:
    report = answered(*LOADS[load])
    return [(report, row) for row in report.rows]


@pytest.mark.parametrize("load", LOADS)
def test_each_row_equals_plan_with_the_same_flags(load: str, capsys: pytest.CaptureFixture[str]):
    rows = rows_of(load)
    assert rows
    for report, row in rows:
        code = run(
            [
                "plan",
                "--json",
                "--no-suggestions",
                "--gpu",
                row.device.name,
                "--",
                *shlex.split(serve_line(report, row)),
            ]
        )
        plan = json.loads(capsys.readouterr().out)
        assert code == 0
        assert plan["kv_cache"]["size_tokens"] == row.plan.kv_cache.size_tokens
        assert plan["kv_cache"]["max_concurrency"] == row.plan.kv_cache.max_concurrency
        assert plan["kv_cache"]["num_blocks"] == row.plan.kv_cache.num_blocks
        assert len(plan["ranks"]) == row.layout.gpus


@pytest.mark.parametrize("load", LOADS)
def test_every_row_holds_the_demand_within_its_margin(load: str):
    for report, row in rows_of(load):
        demand = report.question.demand
        engines = row.layout.dp * row.purchase.replicas
        assert row.sequences == row.capacity.sequences * engines >= demand.sequences
        # Blocks added up one by one: what n requests need stays within the blocks that the margin leaves.
        n, blocks = row.capacity.sequences, row.plan.kv_cache
        lost = row.plan.kv_cache.num_blocks - 1 - row.capacity.safe_blocks
        assert lost * blocks.bytes_per_block >= row.margin.n_bytes - blocks.bytes_per_block
        assert row.margin.n_bytes > 0
        mean = (
            sum(blocks_for(row.plan, p.tokens) * p.weight for p in demand.lengths)
            - row.capacity.shared_blocks
        )
        spread = blocks_for(row.plan, demand.p95_tokens) - row.capacity.shared_blocks - mean

        def needed(n: int, mean: float = mean, spread: float = spread, row: Row = row) -> float:
            return n * mean + n**0.5 * spread + row.capacity.shared_blocks

        assert needed(n) <= row.capacity.safe_blocks + 1e-6
        if row.capacity.limit.value == "kv_cache":
            assert needed(n + 1) > row.capacity.safe_blocks


@pytest.mark.parametrize(
    ("model", "gpus"),
    [
        (GPT_OSS, "L40S,H100"),
        ("meta-llama/Llama-3.1-70B-Instruct", "A100-80GB,L40S"),
        ("deepseek-ai/DeepSeek-V3", "H200"),
    ],
)
def test_pruning_misses_no_purchase_with_fewer_gpus(model: str, gpus: str):
    words = (
        "--model",
        model,
        "--max-model-len",
        "32K",
        "--concurrency",
        "64",
        "--gpu",
        gpus,
        "--no-variants",
        "--no-sensitivity",
    )
    pruned, everything = answered(*words, "--all"), answered(*words, "--every-layout")
    assert pruned.plans_made < everything.plans_made
    for row in pruned.rows:
        same = [
            r
            for r in everything.rows
            if (r.node, r.args.kv_cache_dtype) == (row.node, row.args.kv_cache_dtype)
        ]
        assert row.purchase.gpus_bought == min(r.purchase.gpus_bought for r in same)


def test_a_share_is_lowered_only_where_the_default_does_not_start():
    rows = {row.device.name: row for _, row in rows_of("small GPU")}
    for row in rows.values():
        given = row.args.gpu_memory_utilization
        assert given is None or 0.5 < given < 0.92
    assert all(row.starts for row in rows.values())


def test_amd_gpus_are_planned_but_never_start():
    report = answered(
        "--model",
        GPT_OSS,
        "--max-model-len",
        "8192",
        "--concurrency",
        "8",
        "--vendor",
        "amd",
        "--no-sensitivity",
    )
    assert report.rows
    assert {row.plan.verdict.status for row in report.rows} == {Status.TOO_CLOSE}
    assert all(row.plan.verdict.message for row in report.rows)


def test_sizes_that_are_given_are_kept():
    report = answered(
        "--model",
        LLAMA_8B,
        "--max-model-len",
        "8192",
        "--concurrency",
        "8",
        "--gpu",
        "H100",
        "--tp",
        "2",
        "--pp",
        "2",
        "--kv-cache-dtype",
        "fp8",
        "--no-sensitivity",
    )
    assert report.rows
    for row in report.rows:
        assert (row.layout.tp, row.layout.pp, row.args.kv_cache_dtype) == (2, 2, "fp8")


def test_a_shared_prefix_is_counted_once_and_only_with_prefix_caching():
    words = (
        "--model",
        LLAMA_8B,
        "--prompt-tokens",
        "4000",
        "--output-tokens",
        "96",
        "--concurrent-users",
        "100",
        "--gpu",
        "H100",
        "--no-sensitivity",
        "--kv-cache-dtype",
        "auto",
        "--no-variants",
    )
    (plain,), (shared,) = answered(*words).rows, answered(*words, "--prefix-share", "0.5").rows
    (without,) = answered(*words, "--prefix-share", "0.5", "--no-enable-prefix-caching").rows
    assert shared.capacity.shared_blocks == 2000 // 16
    assert shared.capacity.blocks_mean == plain.capacity.blocks_mean - 125
    assert without.capacity.shared_blocks == 0


def test_boxes_are_filled_and_bought_whole():
    node = Node(find_device("H100"), 8, whole=True)
    assert purchase(node, 2, 3) == purchase(node, 2, 4)
    bought = purchase(node, 2, 3)
    assert (bought.replicas, bought.gpus_used, bought.gpus_bought, bought.nodes) == (4, 8, 8, 1)
    bought = purchase(node, 16, 2)
    assert (bought.replicas, bought.gpus_used, bought.gpus_bought, bought.nodes) == (2, 32, 32, 4)
    bought = purchase(replace(node, gpus=6), 4, 2)
    assert (bought.replicas, bought.gpus_used, bought.gpus_bought, bought.nodes) == (2, 8, 12, 2)
    bought = purchase(replace(node, whole=False), 2, 3)
    assert (bought.gpus_used, bought.gpus_bought, bought.nodes) == (6, 6, 1)


@pytest.mark.parametrize("boxes", [("h100",), ("h100x",), ("h100x0",), ("h100x99999",), ("x8",), ("gb10x4",)])
def test_a_box_that_cannot_be_is_refused(boxes: tuple[str, ...]):
    with pytest.raises(InputError):
        choose_nodes((), None, boxes, None)


def test_prices_of_gpus_and_boxes(tmp_path: Path):
    path = tmp_path / "prices.yaml"
    path.write_text(
        "currency: EUR\nunit: gpu_hour\ngpus:\n  H100: {price: 2.5, source: offer 17, date: 2026-01-05}\n"
        "nodes:\n  h100x8: {price: 18.0, source: offer 18, date: '2026-01-05'}\n"
    )
    prices = read_prices(path)
    single, box = Node(find_device("H100"), 8, whole=False), Node(find_device("H100"), 8, whole=True)
    assert prices.cost(single, purchase(single, 2, 3)) == pytest.approx(15.0)
    assert prices.cost(box, purchase(box, 2, 5)) == pytest.approx(36.0)
    assert prices.cost(Node(find_device("L4"), 8, whole=False), purchase(single, 1, 1)) is None
    report = answered(
        "--model",
        LLAMA_8B,
        "--max-model-len",
        "8192",
        "--concurrency",
        "64",
        "--gpu",
        "H100,L4",
        "--prices",
        str(path),
        "--no-sensitivity",
    )
    assert report.question.sort.value == "cost"
    assert report.rows[0].device.name == "H100-80GB"  # L4 has no price: last
    assert report.rows[-1].cost is None


@pytest.mark.parametrize(
    "text",
    [
        "- 1",
        "unit: week",
        "unit: gpu_hour\ngpus: {H100: {price: 1}}",
        "unit: gpu_hour\ngpus: {H100: {price: -1, source: x, date: y}}",
        "unit: gpu_hour\ngpus: {H101: {price: 1, source: x, date: y}}",
        "a: [",
        "unit: gpu_hour\nnodes: {h100: {price: 1, source: x, date: y}}",
        "unit: gpu_hour\ngpus: {H100: {price: .nan, source: x, date: y}}",
    ],
)
def test_a_broken_price_file_is_one_error(tmp_path: Path, text: str):
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_prices(path)
    assert "\n" not in str(error.value)


def test_variants_are_quantised_checkpoints_of_the_same_layers():
    config = load_model("meta-llama/Llama-3.1-70B-Instruct", offline=True)
    names = [other.name for other in variants(config)]
    assert "nvidia/Llama-3.1-70B-Instruct-FP8" in names
    assert all(other.quantization and other.get("num_hidden_layers") == 80 for other in variants(config))
    assert stem("nvidia/Llama-3.1-70B-Instruct-FP8") == stem("meta-llama/Meta-Llama-3.1-70B-Instruct")
    assert stem("Qwen/Qwen3-8B") != stem("Qwen/Qwen3-0.6B")


def test_a_quantised_row_stays_only_where_it_saves_gpus():
    report = answered(
        "--model",
        "meta-llama/Llama-3.1-70B-Instruct",
        "--max-model-len",
        "32K",
        "--concurrency",
        "64",
        "--gpu",
        "H100,H200",
        "--no-sensitivity",
    )
    for row in report.rows:
        if row.quantised_variant or row.fp8_cache:
            plain = [
                r for r in report.rows if r.node == row.node and not (r.quantised_variant or r.fp8_cache)
            ]
            assert all(row.purchase.gpus_bought < r.purchase.gpus_bought for r in plain)


def test_the_margin_is_never_nothing():
    assert safety_margin("0.26.0", "H200-141GB").n_bytes > 0
    assert safety_margin("0.33.0", "no such GPU").n_bytes >= safety_margin("0.26.0", "H200-141GB").n_bytes
    assert "too few runs" in safety_margin(newest_release().version, "H100-80GB").basis


def test_json_and_csv_say_the_same():
    report = answered(*LOADS["gpt-oss"])
    data = json.loads(json.dumps(answer_to_dict(report)))
    lines = list(csv.DictReader(io.StringIO(answer_to_csv(report))))
    assert len(lines) == len(data["rows"]) == len(report.rows)
    for line, row in zip(lines, data["rows"], strict=True):
        assert line["gpu"] == row["gpu"]
        assert int(line["sequences"]) == row["sequences"]
        assert line["command"] == row["command"]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--model", LLAMA_8B), "--concurrency"),
        (("--model", LLAMA_8B, "--concurrency", "4"), "--max-model-len"),
        (("--model", LLAMA_8B, "--concurrency", "4", "--max-model-len", "auto"), "auto"),
        (("--model", LLAMA_8B, "--prompt-tokens", "4"), "--concurrent-users"),
        (("--concurrency", "4", "--max-model-len", "4096"), "--model"),
        (
            ("--model", LLAMA_8B, "--concurrency", "4", "--max-model-len", "4096", "--vendor", "none"),
            "--vendor",
        ),
        (
            ("--model", LLAMA_8B, "--concurrency", "4", "--max-model-len", "4096", "--sort", "cost"),
            "--prices",
        ),
        (("--model", LLAMA_8B, "--trace", "/no/such.jsonl"), "No such file"),
        (
            (
                "--model",
                LLAMA_8B,
                "--prompt-tokens",
                "9000",
                "--output-tokens",
                "9",
                "--concurrent-users",
                "4",
                "--max-model-len",
                "8K",
            ),
            "--max-model-len 8192",
        ),
    ],
)
def test_bad_questions_are_one_line_and_exit_code_2(
    words: tuple[str, ...], hint: str, capsys: pytest.CaptureFixture[str]
):
    assert run(["size", *words]) == 2
    err = capsys.readouterr().err
    assert hint in err
    assert err.count("\n") == 1
