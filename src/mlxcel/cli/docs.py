"""``mlxcel docs``: writes the reference pages that come from the code's own tables."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from mlxcel.cli.inert import TABLE
from mlxcel.cli.options import default_text, groups_of
from mlxcel.config.option import options_of
from mlxcel.config.server import ServerConfig
from mlxcel.http.route import Route

NOTE = "<!-- Written by `make docs` from the code; edit the tables there. -->\n\n"


def run(arguments: Sequence[str]) -> int:
    """Write every generated page below ``--folder``."""
    parser = argparse.ArgumentParser(prog="mlxcel docs", description="Write the generated reference pages.")
    parser.add_argument("--folder", type=Path, default=Path("docs"), help="documentation folder (default: docs)")
    folder = parser.parse_args(list(arguments)).folder
    for name, text in pages().items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        print(target)
    return 0


def pages() -> dict[str, str]:
    """Generated pages by their path below the documentation folder."""
    from mlxcel.http.routes import all_routes

    return {"options.md": options_page(), "api/routes.md": routes_page(all_routes())}


def options_page() -> str:
    """Every option of the server."""
    lines = [
        NOTE + "# Options of mlxcel-server",
        "",
        "A flag wins over its variables, and the first variable over the others. `LLAMA_API_KEY` adds to `--api-key`.",
    ]
    for group in groups_of(ServerConfig).values():
        lines += [
            "",
            f"## {(group.__doc__ or '').strip()}",
            "",
            "| flags | environment | default | meaning |",
            "| --- | --- | --- | --- |",
        ]
        for item, spec in options_of(group):
            flags = ", ".join(f"`{flag}`" for flag in (*spec.flags, *spec.off_flags))
            env = ", ".join(f"`{name}`" for name in (*spec.env, *spec.off_env))
            choices = f" (one of {', '.join(spec.choices)})" if spec.choices else ""
            lines.append(f"| {flags} | {env} | {default_text(item, spec)} | {_cell(spec.help + choices)} |")
    return "\n".join([*lines, *_inert_lines()]) + "\n"


def _inert_lines() -> list[str]:
    lines = [
        "",
        "## Options of llama-server without a meaning here",
        "",
        "They are taken at the values shown, which change nothing. Any other value stops the start with one line.",
        "",
        "| flags | taken at | otherwise |",
        "| --- | --- | --- |",
    ]
    for item in TABLE:
        flags = ", ".join(f"`{flag}`" for flag in item.flags)
        taken = "always" if item.harmless else ", ".join(f"`{value}`" for value in sorted(item.values or ()) if value)
        lines.append(f"| {flags} | {taken or 'never'} | {_cell(item.instead)} |")
    return lines


def routes_page(routes: Sequence[Route]) -> str:
    """Every route and alias."""
    lines = [NOTE + "# Routes", "", "With an API key configured, only the routes marked open answer without it."]
    for tag in dict.fromkeys(route.tag for route in routes):
        lines += [
            "",
            f"## {tag}",
            "",
            "| method | path | also | streams | statuses | what |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for route in (route for route in routes if route.tag == tag):
            aliases = ", ".join(f"`{path}`" for path in route.aliases)
            statuses = ", ".join(str(status) for status in (200, *route.statuses))
            opened = " (open)" if route.open else ""
            streams = "yes" if route.streams else ""
            lines.append(
                f"| {route.method} | `{route.path}` | {aliases} | {streams} | {statuses} | {_cell(route.summary)}{opened} |"
            )
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
