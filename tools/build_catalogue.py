"""Writes `models.yaml` from a folder of config.json files and a table of what is known about each.

    python tools/build_catalogue.py --configs FOLDER --table configs.tsv --quantization FOLDER

`--table` is tab-separated with the columns model_id, file, source, confidence, known_total_params,
known_source, vendored_index_metadata, flag, note. Only facts travel: keys that no memory rule reads are
dropped (config_keys.py), long lists of module names are written with ranges. docs/catalogue.md has the
schema.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from config_keys import irrelevant
from vllm_capacity.inputs.catalogue import NAME_KEYS, NAME_LISTS, expand

OUTPUT = Path(__file__).parent.parent / "models.yaml"

HEAD = """\
# Facts about public models, for planning without a network.
# Made by tools/build_catalogue.py; the schema is in docs/catalogue.md. One sorted entry per model; every
# field is one line whose value is JSON, so that one entry can be read without the rest.
models:
"""

ALIASES = {
    "CohereForAI/aya-23-8B": "CohereLabs/aya-23-8B",
    "CohereForAI/c4ai-command-r-v01": "CohereLabs/c4ai-command-r-v01",
    "CohereForAI/c4ai-command-r7b-12-2024": "CohereLabs/c4ai-command-r7b-12-2024",
    "CohereForAI/c4ai-command-a-03-2025": "CohereLabs/c4ai-command-a-03-2025",
    "THUDM/GLM-4-32B-0414": "zai-org/GLM-4-32B-0414",
    "THUDM/GLM-4-9B-0414": "zai-org/GLM-4-9B-0414",
    "meta-llama/Llama-3.1-405B": "meta-llama/Meta-Llama-3.1-405B",
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B": "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama/Meta-Llama-3.1-70B-Instruct": "meta-llama/Llama-3.1-70B-Instruct",
    "meta-llama/Meta-Llama-3.1-8B-Instruct": "meta-llama/Llama-3.1-8B-Instruct",
}
"""Renamed repositories: the Hub redirects the old id to the new one."""

LLAMA4_VISION = {
    "hidden_size": 1408, "image_size": 336, "intermediate_size": 5632, "model_type": "llama4_vision_model",
    "num_attention_heads": 16, "num_hidden_layers": 34, "patch_size": 14, "pixel_shuffle_ratio": 0.5,
    "projector_input_dim": 4096, "projector_output_dim": 4096, "vision_feature_layer": -1, "vision_output_dim": 4096,
}  # fmt: skip

ADDED: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2.5-1.5B": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "Qwen/Qwen2.5-14B": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "Qwen/Qwen3-4B": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
    "meta-llama/Llama-3.2-11B-Vision-Instruct": {"architectures": ["MllamaForConditionalGeneration"]},
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": {"vision_config": LLAMA4_VISION},
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": {"vision_config": LLAMA4_VISION},
    "microsoft/phi-2": {"vocab_size": 51200},
    "google/gemma-3-4b-it": {"text_config": {"max_position_embeddings": 131072}},
    "google/gemma-3-12b-it": {"text_config": {"max_position_embeddings": 131072}},
}
"""Keys that a copy lacks or has from elsewhere. The model card states them; for Llama 4 the published totals follow to the
parameter with this tower, for Gemma 3 the weights of a recorded start (tests/data/records/explained.yaml).
"""

_QUANTISATION_NOISE = {"observer", "observer_kwargs", "quantization_status", "global_compression_ratio"}


def relevant(value: Any, key: str = "") -> Any:
    """The config without the keys that no memory rule reads; id2label becomes the number of labels."""
    if isinstance(value, dict):
        result: dict[str, Any] = {}
        labels = value.get("id2label")
        for name, child in value.items():
            if irrelevant(name) or name in _QUANTISATION_NOISE:
                continue
            result[name] = relevant(child, name)
        if isinstance(labels, dict) and "num_labels" not in result:
            result["num_labels"] = len(labels)
        return result
    if isinstance(value, list) and key in NAME_LISTS:
        return compact_names(value)
    return value


def compact(config: dict[str, Any]) -> dict[str, Any]:
    """`relevant` with quantised layers grouped by setting; raises where expanding would not give the same
    back."""
    slim = relevant(config)

    def walk(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        result = {}
        for key, child in value.items():
            if key in NAME_KEYS and isinstance(child, dict):
                groups: dict[str, list[str]] = defaultdict(list)
                for name, setting in child.items():
                    groups[json.dumps(setting, sort_keys=True)].append(name)
                result[key] = [
                    [json.loads(setting), compact_names(names)] for setting, names in sorted(groups.items())
                ]
            else:
                result[key] = walk(child)
        return result

    small: dict[str, Any] = walk(slim)
    if comparable(expand(small)) != comparable(expand(slim)):
        raise SystemExit("a list of module names does not survive compaction")
    return small


def comparable(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: comparable(child, name) for name, child in value.items()}
    if isinstance(value, list) and key in NAME_LISTS:
        return sorted(value)
    return value


_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def compact_names(names: list[str]) -> list[str]:
    """Module names with the layer and expert numbers as ranges: 'model.layers.{0-27}.mlp.gate'."""
    if len(names) < 8:
        return names
    templates: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for name in names:
        templates[_NUMBER.sub("#", name)].add(tuple(int(n) for n in _NUMBER.findall(name)))
    result = []
    for template, rows in sorted(templates.items()):
        for ranges in cover(rows):
            pieces = template.split("#") if ranges else [template]
            result.append(pieces[0] + "".join(r + p for r, p in zip(ranges, pieces[1:], strict=True)))
    return result


def cover(rows: set[tuple[int, ...]]) -> list[tuple[str, ...]]:
    """Products of ranges whose union is `rows`."""
    if rows == {()}:
        return [()]
    rest: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for first, *others in rows:
        rest[first].add(tuple(others))
    merged: dict[frozenset[tuple[int, ...]], list[int]] = defaultdict(list)
    for first, others_of in rest.items():
        merged[frozenset(others_of)].append(first)
    return [
        (ranges(firsts), *tail) for others_set, firsts in merged.items() for tail in cover(set(others_set))
    ]


def ranges(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    pieces: list[list[int]] = []
    for number in sorted(numbers):
        if pieces and number == pieces[-1][1] + 1:
            pieces[-1][1] = number
        else:
            pieces.append([number, number])
    return "{" + ",".join(f"{a}-{b}" if a != b else str(a) for a, b in pieces) + "}"


_EXPONENT = re.compile(r'(?<![\w."-])(-?\d+)(e[-+]?\d+)(?![\w"])')


def to_line(value: Any) -> str:
    """JSON that YAML 1.1 reads alike: a float with an exponent needs a point."""
    return _EXPONENT.sub(
        r"\1.0\2",
        json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False),
    )


def clean_source(text: str) -> str:
    text = re.sub(r"stored page of huggingface\.co \([^)]*\): ", "huggingface.co page ", text)
    text = re.sub(r"find_string ids? \d+(?:,? (?:quoting config\.json, )?\d+)*(?: quoting)?", "", text)
    text = re.sub(r"\(\s*\)", "", text).replace("  ", " ")
    text = re.sub(r"\s*\(layers/heads/kv/hidden/vocab/params scraped from HF\)", "", text)
    text = re.sub(r"public repo file seen via\s*\(embedded", "public code (embedded", text)
    return text.replace("; repository not named by the index", "").replace(" hf_models", "")[:200].strip()


def _what_was_set(added: dict[str, Any]) -> str:
    """The note of an entry with keys that its copy lacks, or has with another value."""
    if "text_config" in added:
        inside = ", ".join(f"text_config.{name}" for name in added["text_config"])
        return f"{inside} set: the copy has another value than the checkpoint"
    verb = "set: the copy has another value" if "vocab_size" in added else "added: the copy lacks them"
    return f"{', '.join(added)} {verb}"


def entry(row: dict[str, str], configs: Path, quantization: Path) -> dict[str, Any]:
    config = json.loads((configs / row["file"]).read_text())
    fields: dict[str, Any] = {}
    if row["known_total_params"]:
        fields["parameters"] = int(row["known_total_params"])
        fields["parameters_source"] = row["known_source"].replace("parameters_raw", "").strip()
        if row["flag"]:
            fields["parameters_note"] = row["flag"].partition(": ")[2] or row["flag"]
    size = re.search(r"total_size=(\d+)", row["vendored_index_metadata"])
    if size:
        fields["checkpoint_bytes"] = int(size[1])
        fields["checkpoint_source"] = "total_size of model.safetensors.index.json"
    fields["source"] = clean_source(row["source"])
    fields["confidence"] = row["confidence"].split(" (")[0]
    if row["note"]:
        note = clean_source(row["note"])
        if note != row["model_id"]:
            fields["note"] = note
    added = ADDED.get(row["model_id"])
    if added:
        config |= {k: {**config.get(k, {}), **v} if isinstance(v, dict) else v for k, v in added.items()}
        fields["note"] = _what_was_set(added) + (f"; {fields['note']}" if "note" in fields else "")
    beside = quantization / row["file"]
    if beside.is_file() and config.get("quantization_config") is None:
        block = json.loads(beside.read_text())
        if "producer" not in block:
            block["producer"] = {"name": "modelopt"}
            added_note = "producer added to hf_quant_config.json: the copy lacks it"
            fields["note"] = added_note + (f"; {fields['note']}" if "note" in fields else "")
        fields["quantization"] = compact(block)
    fields["config"] = compact(config)
    return fields


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--configs", type=Path, required=True)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--quantization", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    with options.table.open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    table = {row["model_id"]: entry(row, options.configs, options.quantization) for row in rows}
    for alias, target in ALIASES.items():
        if alias not in table and target in table:
            table[alias] = {"alias_of": target}
    text = HEAD
    for name in sorted(table, key=str.casefold):
        text += f"  {name}:\n" + "".join(
            f"    {key}: {to_line(value)}\n" for key, value in table[name].items()
        )
    options.output.write_text(text)
    print(len(rows), "models,", len(table) - len(rows), "aliases,", len(text), "bytes")


if __name__ == "__main__":
    main()
