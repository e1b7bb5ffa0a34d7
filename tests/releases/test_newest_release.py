"""The list of what to review for a new vLLM names the functions that changed and the modules of ours that cite them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from vllm_capacity.releases import newest_release
from vllm_capacity.releases.wheels import WHEELS

TOOLS = Path(__file__).parents[2] / "tools"
OURS = ("newest_release", "citations", "verify_releases", "wheel_source")

UTILS = """
LIMIT_OF_UTILS = 1

def request_memory(total, share):
    return total * share

def unrelated_thing():
    return 1

class Worker:
    def init_device(self):
        return 1

    def load_model(self):
        return 2
"""
CITING = {
    "capacity/budget.py": '"""Source: vllm/v1/worker/utils.py (request_memory), 0.33.0."""',
    "capacity/overheads/context.py": "# v1/worker/utils.py: Worker.init_device takes it\n",
    "capacity/architecture/llama.py": '"""model_executor/models/llama.py: LlamaForCausalLM."""',
    "capacity/none.py": '"""tests/test_x.py, a/b/unknown.py"""',
}
LLAMA = "class LlamaAttention:\n    n = 1\n\nclass LlamaForCausalLM:\n    pass\n"


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    for name in OURS:
        sys.modules.pop(name, None)
    import newest_release as module

    yield module
    for name in OURS:
        sys.modules.pop(name, None)


def unpacked(tool, folder: Path, *, version: str, utils: str = UTILS, llama: str = LLAMA):
    info = folder / f"vllm-{version}.dist-info"
    info.mkdir(parents=True)
    row = WHEELS[-1]
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.4\nName: vllm\nVersion: {version}\nRequires-Dist: torch=={row.torch.version}\n"
        f"Requires-Dist: flashinfer-python=={row.flashinfer}\nRequires-Dist: transformers{row.transformers}\n"
    )
    for name, text in {"v1/worker/utils.py": utils, "model_executor/models/llama.py": llama}.items():
        (folder / "vllm" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "vllm" / name).write_text(text)
    return tool.WheelSource(folder)


def test_citations_are_the_functions_that_our_modules_name(tool, tmp_path):
    wheel = unpacked(tool, tmp_path, version="0.33.0")
    assert tool.citations(wheel, CITING) == {
        ("v1/worker/utils.py", "request_memory"): {"capacity/budget.py"},
        ("v1/worker/utils.py", "Worker.init_device"): {"capacity/overheads/context.py"},
        ("model_executor/models/llama.py", ""): {"capacity/architecture/llama.py"},
    }


def test_a_changed_function_is_listed_with_the_modules_that_cite_it(tool, tmp_path):
    old, new = (
        unpacked(tool, tmp_path / "old", version="0.33.0"),
        unpacked(
            tool, tmp_path / "new", version="0.99.0", utils=UTILS.replace("total * share", "total * share + 1"),
            llama=LLAMA.replace("n = 1", "n = 2"),
        ),
    )  # fmt: skip
    recorded = tool.hashes(old, tool.citations(old, CITING))
    cited = {tool.place_of(*key): modules for key, modules in tool.citations(new, CITING).items()}
    assert list(tool.changes(old, recorded, cited)) == []
    assert list(tool.changes(new, recorded, cited)) == [
        tool.Change("model_executor/models/llama.py", "changed", ("capacity/architecture/llama.py",)),
        tool.Change("v1/worker/utils.py: request_memory", "changed", ("capacity/budget.py",)),
    ]


def test_a_function_that_is_gone_is_listed(tool, tmp_path):
    old = unpacked(tool, tmp_path / "old", version="0.33.0")
    new = unpacked(
        tool, tmp_path / "new", version="0.99.0", utils=UTILS.replace("def init_device", "def other")
    )
    recorded = tool.hashes(old, tool.citations(old, CITING))
    (change,) = tool.changes(new, recorded, {})
    assert (change.place, change.what) == ("v1/worker/utils.py: Worker.init_device", "gone")


def test_a_release_with_the_pins_of_the_newest_known_lists_features_only(tool, tmp_path):
    lines = list(tool.other_differences(unpacked(tool, tmp_path, version="0.99.0")))
    assert lines
    assert all(line.startswith("feature ") for line in lines)


def test_the_record_is_of_the_newest_release_and_every_place_of_it_is_cited(tool):
    record = json.loads((TOOLS / "cited.json").read_text(encoding="utf-8"))
    assert record["release"] == newest_release().version
    assert len(record["functions"]) > 500
    from citations import sources

    everything = "\n".join(sources().values())
    lost = [place for place in record["functions"] if Path(place.partition(": ")[0]).name not in everything]
    assert lost == [], "no longer cited: python tools/newest_release.py WHEEL --update"
