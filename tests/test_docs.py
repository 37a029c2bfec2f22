"""Documentation that can be checked: generated pages, links, and the README's promises."""

from __future__ import annotations

import re
from pathlib import Path

from mlxcel.cli.docs import pages
from mlxcel.cli.options import groups_of
from mlxcel.config.option import options_of
from mlxcel.config.server import ServerConfig

ROOT = Path(__file__).parent.parent


def test_generated_pages_are_up_to_date() -> None:
    stale = [name for name, text in pages().items() if (ROOT / "docs" / name).read_text(encoding="utf-8") != text]
    assert stale == [], "run make docs"


def test_flags_and_variables_are_unique() -> None:
    flags: list[str] = []
    names: list[str] = []
    for group in groups_of(ServerConfig).values():
        for _, spec in options_of(group):
            flags += [*spec.flags, *spec.off_flags]
            names += [*spec.env, *spec.off_env]
    assert len(flags) == len(set(flags))
    assert len(names) == len(set(names))


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)} -> {target}")
    assert broken == []


def test_the_readme_opens_with_its_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    head = text.splitlines()[:15]
    assert any("make serve" in line for line in head)
    assert any("make test" in line for line in head)


def test_decisions_are_numbered_without_gaps_in_form() -> None:
    for page in (ROOT / "docs" / "decisions").glob("*.md"):
        assert re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", page.name)
        text = page.read_text(encoding="utf-8")
        for heading in ("Context", "Evidence", "Choice"):
            assert re.search(rf"^##+ .*{heading}", text, re.MULTILINE), f"{page.name} lacks {heading}"
