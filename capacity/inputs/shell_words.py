"""Splits pasted shell text into commands and words, as far as start-up lines in guides and issues need it.

Knows quotes, escapes, comments, line ends that are escaped, `;`, `&&`, pipes, redirections, `export`,
assignments and `$NAME` of a variable that was set before. Runs nothing: command substitution is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field

from vllm_capacity.errors import InputError
from vllm_capacity.frozen import dataclass

MAX_TEXT = 1 << 20

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_REDIRECTION = re.compile(r"(?:\d|&)?(?:>>?|<)(?:&\d|\s*[^\s;|&]+)?")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|([A-Za-z_]\w*))")
_SEPARATORS = ";&|\n"
_PROMPTS = ("$ ", "# ", "> ", "% ", "!")


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command: `environment` holds what was assigned or exported up to and in front of it."""

    words: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


def split_text(text: str) -> tuple[Command, ...]:
    """The commands of shell text, in order. InputError for open quotes and for `$(...)`."""
    if len(text) > MAX_TEXT:
        raise InputError(f"the pasted text has more than {MAX_TEXT:,} characters")
    commands: list[Command] = []
    exported: dict[str, str] = {}
    for raw in _commands(_without_prompts(text)):
        command = _assignments([_expand(word, exported) for word in raw], exported)
        if command.words:
            commands.append(command)
        else:
            exported.update(command.environment)
    return tuple(commands)


def split_words(words: Sequence[str]) -> Command:
    """Words that a shell has split already: assignments in front become the environment."""
    return _assignments(list(words), {})


def _assignments(words: list[str], exported: dict[str, str]) -> Command:
    environment = dict(exported)
    words = list(words)
    while words:
        word = words[0]
        if _ASSIGNMENT.match(word):
            name, _, value = word.partition("=")
            environment[name] = value
        elif word not in ("env", "export"):
            break
        words.pop(0)
    return Command(tuple(words), environment)


def _without_prompts(text: str) -> str:
    """Drops prompts, `!` of notebooks and `%%bash`, and joins lines that end in a backslash."""
    lines = []
    for line in text.replace("\r\n", "\n").replace("\u00a0", " ").split("\n"):
        stripped = line.lstrip()
        if stripped.startswith(("%%", "```")):
            continue
        for prompt in _PROMPTS:
            if prompt != "# " and stripped.startswith(prompt):
                stripped = stripped[len(prompt) :]
                break
        lines.append(stripped)
    return re.sub(r"\\[ \t]*\n\s*", " ", "\n".join(lines))


def _expand(word: tuple[str, bool], known: dict[str, str]) -> str:
    """`$NAME` of a variable set before; others stay as they are and are refused where a value matters."""
    text, literal = word
    if literal or "$" not in text:
        return text
    return _VARIABLE.sub(lambda m: known.get(m[1] or m[3], m[2] if m[2] is not None else m[0]), text)


def _commands(text: str) -> list[list[tuple[str, bool]]]:
    """Words of each command, each with whether it was wholly in single quotes."""
    commands: list[list[tuple[str, bool]]] = [[]]
    position, length = 0, len(text)
    while position < length:
        char = text[position]
        if char in " \t\r":
            position += 1
        elif char == "#":
            end = text.find("\n", position)
            position = length if end < 0 else end
        elif char in _SEPARATORS:
            commands.append([])
            position += 1
        elif match := _REDIRECTION.match(text, position):
            position = match.end()
        else:
            word, literal, position = _word(text, position)
            commands[-1].append((word, literal))
    return [words for words in commands if words]


def _word(text: str, position: int) -> tuple[str, bool, int]:
    """One word from `position`: (its text without quotes, wholly single-quoted, where it ends)."""
    start, out, only_single = position, list[str](), True
    while position < len(text):
        char = text[position]
        if char in " \t\r" or char in _SEPARATORS:
            break
        if char == "'":
            end = text.find("'", position + 1)
            if end < 0:
                raise InputError(f"the quote at {text[position : position + 30]!r} is not closed")
            out.append(text[position + 1 : end])
            position = end + 1
            continue
        only_single = False
        if char == '"':
            piece, position = _double_quoted(text, position)
            out.append(piece)
        elif char == "\\" and position + 1 < len(text):
            out.append(text[position + 1])
            position += 2
        elif char == "`" or text.startswith("$(", position):
            raise InputError(f"{text[start : start + 40]!r} runs a command; write its result instead")
        else:
            out.append(char)
            position += 1
    return "".join(out), only_single, position


def _double_quoted(text: str, position: int) -> tuple[str, int]:
    out: list[str] = []
    start = position
    position += 1
    while position < len(text):
        char = text[position]
        if char == '"':
            return "".join(out), position + 1
        if char == "\\" and position + 1 < len(text) and text[position + 1] in '"\\$`':
            position += 1
            char = text[position]
        out.append(char)
        position += 1
    raise InputError(f"the quote at {text[start : start + 30]!r} is not closed")
