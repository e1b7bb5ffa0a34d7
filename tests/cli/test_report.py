"""`--report FILE.html` on the command line: what is written, what is refused, and that its command makes it again."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from reading_pages import Page, text
from vllm_capacity.cli import run

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "head_dim": 64,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "tie_word_embeddings": True, "rms_norm_eps": 1e-05,
}  # fmt: skip
"""The sizes of Llama 3.2 1B."""


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are written to a folder of their own, and no user's calibration counts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def made(*words: str) -> Page:
    run([words[0], "--report", "page.html", *words[1:]])
    return Page(Path("page.html").read_text(encoding="utf-8"))


# -- the command on the page makes the page again


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "--model", LLAMA),
        ("plan", "--model", LLAMA, "--gpu", "h100", "--tp", "1,2,3", "--max-model-len", "32k", "--concurrency", "8",
         "--vllm-version", "0.26.0", "--env", "VLLM_USE_V2_MODEL_RUNNER=0"),
        ("plan", "--gpu", "L40S", "--", "docker", "run", "-e", "HF_HOME", "vllm/vllm-openai:v0.26.0", "--model", LLAMA,
         "--max-num-seqs", "256", "--kv-cache-dtype", "fp8"),
        ("plan", "--model", LLAMA, "--usage", "offline", "--used-memory", "10GiB", "--max-model-len", "auto",
         "--gpu-memory", "24GiB", "--compute-capability", "8.9", "--hf-overrides", '{"max_position_embeddings": 65536}'),
        ("plan", "--model", "Qwen/Qwen3-30B-A3B", "--gpu", "H200", "--dp", "2", "-ep", "--no-suggestions",
         "--compilation-config", '{"cudagraph_mode": "PIECEWISE"}', "--no-enable-prefix-caching"),
        ("plan", "--model", LLAMA, "--gpu", "H100", "--tp", "3"),
        ("size", "--model", LLAMA, "--max-model-len", "32K", "--concurrency", "64", "--gpu", "H100,L40S", "--tp", "1,2",
         "--no-sensitivity", "--no-variants"),
        ("size", "--model", LLAMA, "--prompt-tokens", "3000", "--output-tokens", "500", "--concurrent-users", "200",
         "--kv-cache-dtype", "fp8", "--top", "2", "--node", "h100x8", "--vllm-version", "0.26.0"),
    ],
)  # fmt: skip
def test_the_command_makes_the_same_page(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]):
    first = made(*words)
    Path("page.html").unlink()
    command = shlex.split(first.commands[-1])
    assert command[:2] == ["vllm-capacity", words[0]]
    run(command[1:])
    assert Path("page.html").read_text(encoding="utf-8") == first.source
    assert capsys.readouterr().err == ""


def test_the_command_names_what_the_machine_would_else_decide():
    command = made("plan", "--model", LLAMA).commands[-1]
    assert "--gpu H100-80GB" in command
    assert "--vllm-version" in command


def test_the_serve_line_is_the_one_of_the_plan(capsys: pytest.CaptureFixture[str]):
    seen = made("plan", "--model", LLAMA, "--gpu", "H100", "--tp", "2", "--max-num-seqs", "64")
    assert seen.commands[0] == f"vllm serve {LLAMA} --tensor-parallel-size 2 --max-num-seqs 64"
    assert seen.commands[0] in " ".join(capsys.readouterr().out.split())


def test_other_output_is_as_without_a_report(capsys: pytest.CaptureFixture[str]):
    words = ["plan", "--model", LLAMA, "--gpu", "H100", "--json", "--vllm-version", "0.26.0"]
    assert run(words) == 0
    alone = capsys.readouterr().out
    assert run([*words, "--report", "page.html"]) == 0
    assert capsys.readouterr().out == alone
    document = json.loads(alone)
    assert Page(Path("page.html").read_text()).key_numbers["KV cache"] == document["kv_cache"]["size_tokens"]


# -- what must not be on a page


def test_credentials_stay_with_their_owner():
    seen = made(
        "plan", "--gpu", "H100", "--env", "HF_TOKEN=hf_Envelope", "--", "docker", "run", "-e", "HUGGING_FACE_HUB_TOKEN=hf_Docker",
        "-e", "AWS_SECRET_ACCESS_KEY=Wolf", "-e", "MY_OWN_CREDENTIAL=Fox", "-e", "NCCL_NVLS_ENABLE=0",
        "vllm/vllm-openai:v0.26.0", "--model", LLAMA, "--api-key", "sk-Raven", "--hf-token", "hf_Bear",
    )  # fmt: skip
    for secret in ("Envelope", "Docker", "Wolf", "Fox", "Raven", "Bear"):
        assert secret not in seen.source
    assert "NCCL_NVLS_ENABLE" in seen.source


def test_no_path_of_the_machine_is_on_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The user's own calibration counts and is said to, but not where it lies; a folder is named as it was typed."""
    from vllm_capacity import calibration

    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.json").write_text(json.dumps(CONFIG))
    file = tmp_path / "config" / "vllm-capacity" / "calibration.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(calibration.render(calibration.load_calibration("none").measurements[:1]))
    seen = made("plan", "--model", "./small", "--gpu", "H100")
    assert "a calibration file's first" in text(seen.root)
    assert str(tmp_path) not in seen.source
    assert str(Path.home()) + "/" not in seen.source
    assert "local file small/config.json" in text(seen.root)


@pytest.mark.parametrize(
    "name",
    ["<img src=x onerror=alert(1)>", "a&b<script>alert(1)<", '"><svg onload=alert(1)>', "{{ 7*7 }}{% raw %}"],
)
def test_hostile_names_are_text(name: str, tmp_path: Path):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for words in (
        ("plan", "--model", name, "--gpu", "H100"),
        ("plan", "--model", name, "--gpu", "H100", "--tp", "3"),
        (
            "size",
            "--model",
            name,
            "--gpu",
            "H100",
            "--concurrency",
            "4",
            "--max-model-len",
            "8K",
            "--no-sensitivity",
        ),
    ):
        seen = made(
            *words, "--", "vllm", "serve", "ignored", "--served-model-name", "</code><script>x()</script>"
        )
        assert not seen.all("script")
        assert not seen.all("img")
        assert not any(a.rpartition("}")[2].startswith("on") for e in seen.root.iter() for a in e.attrib)
        (heading,) = seen.all("h1")
        assert " ".join(name.split()) in text(heading)
        (_,) = [t for t in seen.root.iter("title") if " ".join(name.split()) in text(t)]
        run(shlex.split(seen.commands[-1])[1:])
        assert Path("page.html").read_text(encoding="utf-8") == seen.source


# -- files


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("missing/page.html", "there is no folder missing"),
        ("folder.html", "not a file"),
        ("file/page.html", "there is no folder file"),
        ("page.txt", "must end in .html"),
        ("page", "must end in .html"),
        ("x" * 300 + ".html", "name too long"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        ("plan", "--model", LLAMA),
        ("size", "--model", LLAMA, "--gpu", "H100", "--concurrency", "1", "--max-model-len", "1K"),
    ],
)
def test_a_page_that_cannot_be_written_is_one_line_and_exit_code_2(
    path: str, words: str, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
):
    Path("folder.html").mkdir()
    Path("file").write_text("")
    before = sorted(Path().iterdir())
    assert run([*command, "--report", path]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert words in said.err.lower()
    assert "--report" in said.err
    assert sorted(Path().iterdir()) == before


def test_a_page_that_fails_half_way_leaves_the_old_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A full disk, as the system reports it."""
    import errno
    import os

    Path("page.html").write_text("the old page")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    assert run(["plan", "--model", LLAMA, "--gpu", "H100", "--report", "page.html"]) == 2
    assert "No space left" in capsys.readouterr().err
    assert Path("page.html").read_text() == "the old page"
    assert [path.name for path in Path().iterdir()] == ["page.html"]


def test_a_page_replaces_an_older_one_and_leaves_nothing_beside_it():
    Path("page.html").write_text("the old page")
    assert run(["plan", "--model", LLAMA, "--gpu", "H100", "--report", "page.html"]) == 0
    assert Path("page.html").read_text().startswith("<!doctype html>")
    assert [path.name for path in Path().iterdir()] == ["page.html"]


def test_report_and_check_exclude_each_other(capsys: pytest.CaptureFixture[str]):
    assert run(["plan", "--model", LLAMA, "--check", "dry-run", "--report", "page.html"]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_the_template_engine_is_loaded_for_a_page_only():
    words = ["plan", "--model", LLAMA, "--gpu", "H100", "--json"]
    program = (
        f"import sys; from vllm_capacity.cli import run; run({words}); "
        "assert not {'jinja2', 'markupsafe'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
