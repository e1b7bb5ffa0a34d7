"""Shell completion, asked for as the scripts that `completion` prints ask for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from vllm_capacity.cli import COMMANDS, run
from vllm_capacity.inputs.catalogue import model_ids
from vllm_capacity.inputs.gpus import list_devices
from vllm_capacity.releases import supported_releases

SHELLS = {"bash": "bash", "zsh": "zsh", "fish": "fish"}


def complete(*words: str) -> list[str]:
    """What a shell is told after `vllm-capacity WORDS...`, the last word being typed; a file is given as "(file)"."""
    environment = {
        **os.environ,
        "_VLLM_CAPACITY_COMPLETE": "bash_complete",
        "COMP_WORDS": "\n".join(["vllm-capacity", *words]),
        "COMP_CWORD": str(len(words)),
    }
    program = [sys.executable, "-c", "from vllm_capacity.cli import main; main()"]
    done = subprocess.run(program, capture_output=True, text=True, env=environment)
    assert done.stderr == ""
    pairs = (line.split(",", 1) for line in done.stdout.split())
    return [value if kind == "plain" else f"({kind})" for kind, value in pairs]


def test_commands():
    assert complete("") == list(COMMANDS)
    assert complete("com") == ["compare", "completion"]


def test_a_model_of_the_catalogue_by_the_beginning_of_its_id_or_of_its_name():
    assert "Qwen/Qwen3-30B-A3B" in complete("plan", "--model", "qwen/qwen3-30")
    assert "meta-llama/Llama-3.1-8B" in complete("size", "--model", "Llama-3.1-8")
    assert complete("plan", "--model", "") == model_ids()


def test_a_model_that_is_a_path():
    assert complete("plan", "--model", "./my") == ["(file)"]
    assert complete("plan", "--model", "no-model-begins-so") == ["(file)"]


def test_gpus_and_several_of_them():
    assert complete("plan", "--gpu", "") == [device.name for device in list_devices()]
    assert "H100-80GB" in complete("plan", "--gpu", "h100")
    assert "L40S,H200-141GB" in complete("size", "--gpu", "L40S,h2")


def test_releases_newest_first():
    assert complete("plan", "--vllm-version", "") == list(supported_releases()[::-1])


def test_flags_of_the_tool_and_of_vllm():
    found = complete("plan", "--ma")
    assert {"--max-model-len", "--max-num-seqs"} <= set(found)  # options of `plan`
    assert "--max-loras" in found  # a flag that only vLLM's parser knows
    assert len(found) == len(set(found))


@pytest.mark.parametrize(
    ("flag", "value"), [("--kv-cache-dtype", "fp8"), ("--dtype", "bfloat16"), ("--explain", "activation")]
)
def test_values(flag: str, value: str):
    assert value in complete("plan", flag, value[:2])


def test_a_file_where_one_is_asked_for():
    assert complete("explain", "server") == ["(file)"]
    assert complete("size", "--trace", "req") == ["(file)"]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_one_that_the_shell_reads(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    assert "_VLLM_CAPACITY_COMPLETE" in script.read_text()
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    checked = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")
def test_bash_completes_with_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run(["completion", "bash"])
    program = tmp_path / "vllm-capacity"
    program.write_text(f"#!{sys.executable}\nfrom vllm_capacity.cli import main\nmain()\n")
    program.chmod(0o755)
    ask = "COMP_WORDS=(vllm-capacity plan --gpu H20); COMP_CWORD=3; _vllm_capacity_completion vllm-capacity"
    script = f'{capsys.readouterr().out}\n{ask}\nprintf "%s\\n" "${{COMPREPLY[@]}}"\n'
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment)
    names = [device.name for device in list_devices() if device.name.startswith("H20")]
    assert done.stdout.split() == names
    assert names


def test_another_shell_is_refused_by_name(capsys: pytest.CaptureFixture[str]):
    assert run(["completion", "tcsh"]) == 2
    assert "'bash', 'zsh', 'fish'" in capsys.readouterr().err
