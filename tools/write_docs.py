"""Writes every generated page, picture and shown output of README.md and docs/.

    python tools/write_docs.py [--check] [NAME ...]

NAME is a path below the repository ("docs/releases.md", "README.md"); none means all. `--check` writes nothing and names what
differs, with exit code 1. Tests hold each of them.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import command_page
import doc_examples
import import_picture
import memory_pictures
import schema_page
import write_accuracy
import write_margins
import write_release_docs
from doc_facts import FACTS

ROOT = Path(__file__).resolve().parent.parent

WRITTEN: dict[str, Callable[[], str]] = {
    "capacity/sizing/margins.yaml": write_margins.text,
    "capacity/report/accuracy.json": write_accuracy.packaged,
    "docs/accuracy.md": write_accuracy.page,
    "docs/releases.md": write_release_docs.page,
    "docs/commands.md": command_page.page,
    "docs/json-schema.md": schema_page.page,
    **{f"docs/{name}.schema.json": text for name, text in schema_page.SCHEMAS.items()},
    "docs/pictures/imports.svg": import_picture.picture,
    **{f"docs/pictures/{name}": draw for name, draw in memory_pictures.PICTURES.items()},
}
"""Files that are written whole."""

FACT = re.compile(r"(<!-- fact: (?P<name>[a-z-]+) -->).*?(<!-- /fact -->)", re.DOTALL)
"""A generated part of a page that is otherwise written by hand; `doc_facts.FACTS` has what belongs there."""


def with_facts(text: str) -> str:
    return FACT.sub(lambda match: f"{match[1]}{FACTS[match['name']]()}{match[3]}", text)


def with_examples(page: Path) -> str:
    """A page with its facts and with what its examples print now."""
    with tempfile.TemporaryDirectory() as folder:
        return with_facts(doc_examples.rewritten(page, Path(folder)))


def generated() -> dict[str, Callable[[], str]]:
    pages = {
        str(page.relative_to(ROOT)): partial(with_examples, page)
        for page in doc_examples.PAGES
        if str(page.relative_to(ROOT)) not in WRITTEN
        and (doc_examples.shows_output(page) or FACT.search(page.read_text(encoding="utf-8")))
    }
    return {**WRITTEN, **pages}


def main(arguments: list[str]) -> int:
    check, names = "--check" in arguments, [name for name in arguments if name != "--check"]
    known = generated()
    if unknown := set(names) - known.keys():
        print(f"not generated: {', '.join(sorted(unknown))}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    differing = []
    for name in names or known:
        path, text = ROOT / name, known[name]()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        differing.append(name)
        if not check:
            path.write_text(text, encoding="utf-8")
    for name in differing:
        print(f"{'differs' if check else 'written'}: {name}")
    return 1 if check and differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
