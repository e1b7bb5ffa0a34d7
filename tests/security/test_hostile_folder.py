"""The claims of docs/security.md about models of strangers, held against what the interpreter reports of itself.

A folder holds a config.json that asks for its own code to be run, and code, libraries and pickles under every name that
something might import or load. Commands run inside of that folder.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from faults.running import environment
from vllm_capacity.inputs.catalogue import find_entry
from vllm_capacity.inputs.local_gpu import _QUESTION
from vllm_capacity.validate.planning import installed_vllm

WATCHED = Path(__file__).with_name("watched.py")
EVIL = "import os; open(os.environ['PWNED'], 'w').close()\n"
NAMES = (
    "modeling_evil", "configuration_evil", "tokenization_evil", "setup", "conftest", "sitecustomize", "usercustomize", "torch",
    "vllm", "transformers", "numpy", "json", "yaml", "click", "rich", "pydantic", "ctypes", "importlib", "subprocess", "csv",
    "email", "zipfile", "vllm_capacity", "huggingface_hub", "safetensors", "matplotlib", "string", "typing", "encodings",
)  # fmt: skip
SENTINEL = "HOSTILEWORD"
"""In every text of the config that a plan does not need: must never be compiled or imported."""
READ = {"config.json", "hf_quant_config.json", "model.safetensors.index.json", "a.safetensors"}
OUTSIDE = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.forkpty", "subprocess.Popen", "pickle.find_class",
           "ctypes.dlopen", "urllib.Request", "socket.connect", "socket.bind", "socket.getaddrinfo")  # fmt: skip
CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.chmod", "os.symlink", "os.link", "os.truncate", "shutil.rmtree",
           "tempfile.mkstemp", "tempfile.mkdtemp")  # fmt: skip


def safetensors() -> bytes:
    header = json.dumps(
        {"model.norm.weight": {"dtype": "BF16", "shape": [4096], "data_offsets": [0, 8192]}}
    ).encode()
    return struct.pack("<Q", len(header)) + header + bytes(8192)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The hostile folder."""
    folder = tmp_path / "model"
    folder.mkdir()
    entry = find_entry("Qwen/Qwen3-8B")
    assert entry is not None
    config: dict[str, Any] = {
        **entry.config,
        "auto_map": dict.fromkeys(
            ("AutoConfig", "AutoModel", "AutoModelForCausalLM"), f"modeling_evil.{SENTINEL}"
        ),
        "trust_remote_code": True,
        "custom_pipelines": {"text-generation": {"impl": f"modeling_evil.{SENTINEL}"}},
        "_name_or_path": f"__import__('os').system('touch $PWNED') # {SENTINEL}",
        "transformers_version": f"{SENTINEL}; import modeling_evil",
        "chat_template": f"{{{{ ''.__class__.__mro__[1].__subclasses__() }}}} {SENTINEL}",
        f"{SENTINEL}": f"lambda: __import__('modeling_evil').{SENTINEL}",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors.index.json").write_text(
        '{"weight_map": {"model.norm.weight": "a.safetensors"}}'
    )
    (folder / "a.safetensors").write_bytes(safetensors())
    for name in NAMES:
        (folder / f"{name}.py").write_text(EVIL)
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "__init__.py").write_text(EVIL)
    (folder / "__init__.py").write_text(EVIL)
    (folder / "evil.pth").write_text(EVIL)
    pickled = b"cposix\nsystem\n(S'touch $PWNED'\ntR."
    for name in ("pytorch_model.bin", "training_args.bin", "model.pt", "model.ckpt", "consolidated.00.pth"):
        (folder / name).write_bytes(pickled)
    (folder / "libcuda.so.1").write_bytes(b"\x7fELF")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "generation_config.json").write_text('{"max_length": 99}')
    (folder / "vllm-0.19.0.dist-info").mkdir()
    return folder


@dataclass(frozen=True)
class Report:
    """What a watched run did."""

    events: list[tuple[str, list[str]]]
    modules: list[str]
    code: int

    def of(self, *names: str) -> list[tuple[str, list[str]]]:
        return [(name, arguments) for name, arguments in self.events if name in names]


def watched(folder: Path, *arguments: str, **changes: str) -> Report:
    """A run with the folder as the current one, no bytecode written and a home that does not exist."""
    output = folder.parent / "events.json"
    pwned = folder.parent / "pwned"
    env = environment(
        PWNED=str(pwned),
        HOME=str(folder.parent / "home"),
        PYTHONDONTWRITEBYTECODE="1",
        HF_HUB_OFFLINE="0",
        **changes,
    )
    done = subprocess.run([sys.executable, str(WATCHED), str(output), *arguments], cwd=folder, env=env, check=False,
                          capture_output=True, text=True)  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    assert not pwned.exists()
    report = json.loads(output.read_text())
    return Report(
        [(name, arguments) for name, arguments in report["events"]], report["modules"], done.returncode
    )


GPU = ("--gpu", "H100-80GB")
COMMANDS = {
    "plan": ("plan", *GPU, "--model", "."),
    "plan --json": ("plan", *GPU, "--model", ".", "--json"),
    "plan of headers": ("plan", *GPU, "--model", ".", "--weights", "headers"),
    "plan of a pasted line": (
        "plan",
        *GPU,
        "--",
        "vllm",
        "serve",
        ".",
        "--trust-remote-code",
        "--tensor-parallel-size=2",
    ),
    "plan --emit": ("plan", *GPU, "--model", ".", "--emit", "compose"),
    "plan with overrides": (
        "plan",
        *GPU,
        "--model",
        ".",
        "--hf-overrides",
        '{"auto_map": {"AutoConfig": "modeling_evil.X"}}',
    ),
    "size": ("size", *GPU, "--model", ".", "--max-model-len", "4096", "--concurrency", "2"),
    "compare": ("compare", "--tp 1", "--tp 2", *GPU, "--model", "."),
    "local GPU": ("plan", "--model", "."),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_hostile_model_is_read_and_never_run_and_nothing_is_written(name: str, model: Path) -> None:
    report = watched(model, *COMMANDS[name])
    assert report.code in (0, 1, 2, 3)
    inside = str(model)

    def below(path: str) -> bool:
        return os.path.abspath(os.path.join(inside, path)).startswith(inside + os.sep)

    opened = {Path(arguments[0]).name for _, arguments in report.of("open") if below(arguments[0])}
    assert "config.json" in opened
    assert opened <= READ, "nothing else of the folder is opened"
    assert not [file for file in report.modules if file and below(file)]
    for event, arguments in report.of("import", "exec", "compile", "marshal.loads"):
        assert not any(SENTINEL in text or "modeling_evil" in text for text in arguments), (event, arguments)
    for event, arguments in report.of("exec"):
        assert not below(arguments[0]) or arguments[0].startswith("<"), (event, arguments)
    assert report.of(*OUTSIDE) == []
    changed = [
        arguments
        for _, arguments in report.of("open")
        if len(arguments) > 1
        and any(letter in arguments[1] for letter in "wax+")
        and arguments[0] != os.devnull
    ]
    assert changed == []
    assert report.of(*CHANGES) == []


def test_the_hook_sees_what_it_is_to_see(model: Path) -> None:
    """A run that does what the others must not: a plot is written, an offered Hub is asked."""
    report = watched(model, *COMMANDS["plan"], "--plot", "plot.svg")
    assert any("plot.svg" in arguments[0] for _, arguments in report.of("open"))
    asked = watched(model, "plan", *GPU, "--model", "no/model", HF_ENDPOINT="http://127.0.0.1:9")
    assert asked.of("socket.connect")


def test_no_socket_without_a_hub_id(model: Path) -> None:
    """Catalogue ids, folders and logs need no network; not even a socket is made."""
    for arguments in (
        ("plan", *GPU, "--model", "Qwen/Qwen3-8B"),
        ("models",),
        ("plan", *GPU, "--model", "no/model", "--offline"),
    ):
        report = watched(model, *arguments)
        assert report.of("socket.connect", "socket.bind", "socket.getaddrinfo", "urllib.Request") == [], (
            arguments
        )


def test_a_log_is_read_and_never_run(model: Path) -> None:
    log = (Path(__file__).parents[1] / "data" / "logs" / "scenarios").glob("*.log")
    text = (
        min(log).read_text()
        + f"INFO [utils.py:1] non-default args: {{'model': __import__('os').system('{SENTINEL}')}}\n"
    )
    (model / "server.log").write_text(text)
    report = watched(model, "explain", "server.log", "--offline")
    assert report.of("os.system", "subprocess.Popen", "os.posix_spawn", "socket.connect") == []
    assert not any(SENTINEL in arguments[0] for _, arguments in report.of("exec"))


# -- child interpreters -------------------------------------------------------------------------------------------


def test_the_question_to_the_driver_imports_nothing_from_the_current_folder(model: Path) -> None:
    """`plan` without --gpu on a machine with one starts `python -I -c`; its answer needs no GPU to be looked at here."""
    env = environment(PWNED=str(model.parent / "pwned"))
    subprocess.run(
        [sys.executable, "-I", "-c", _QUESTION], cwd=model, env=env, check=False, capture_output=True
    )
    assert not (model.parent / "pwned").exists()


def test_the_question_which_vllm_a_python_has_imports_nothing_from_the_current_folder(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model)
    monkeypatch.setenv("PWNED", str(model.parent / "pwned"))
    assert installed_vllm(sys.executable)["vllm"] is None
    assert not (model.parent / "pwned").exists()


def test_the_folder_is_hostile_indeed(model: Path) -> None:
    """Without those measures the same questions run the folder's code."""
    env = environment(PWNED=str(model.parent / "pwned"))
    subprocess.run([sys.executable, "-c", _QUESTION], cwd=model, env=env, check=False, capture_output=True)
    assert (model.parent / "pwned").exists()
