"""Size as a habit: files stay readable, and exceptions to that carry a reason."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
MAX_MODULE_LINES = 500
MAX_TEST_LINES = 600
MAX_FUNCTION_LINES = 70

ALLOWED_MODULES: dict[str, str] = {}
ALLOWED_FUNCTIONS: dict[str, str] = {}


def _modules(folder: str) -> list[Path]:
    return sorted(path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts)


def test_modules_stay_under_the_limit() -> None:
    too_long = {
        str(path.relative_to(ROOT)): lines
        for folder, limit in (("src", MAX_MODULE_LINES), ("bench", MAX_MODULE_LINES), ("tests", MAX_TEST_LINES))
        for path in _modules(folder)
        if (lines := path.read_text(encoding="utf-8").count("\n")) > limit
    }
    assert {name: lines for name, lines in too_long.items() if name not in ALLOWED_MODULES} == {}


def test_functions_stay_under_the_limit() -> None:
    too_long = []
    for path in _modules("src"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or node.lineno) - node.lineno
                name = f"{path.relative_to(ROOT)}:{node.name}"
                if lines > MAX_FUNCTION_LINES and name not in ALLOWED_FUNCTIONS:
                    too_long.append((name, lines))
    assert too_long == []


def test_there_is_no_module_level_mutable_state() -> None:
    """No ``global`` statement, and no empty container at module level waiting to be filled."""
    found = []
    for path in _modules("src"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += [str(path) for node in ast.walk(tree) if isinstance(node, ast.Global)]
        for node in tree.body:
            value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
            if (
                isinstance(value, (ast.Dict, ast.List))
                and not getattr(value, "keys", None)
                and not getattr(value, "elts", None)
            ):
                found.append(f"{path}:{node.lineno}")
    assert found == []


def test_input_is_not_checked_with_assert() -> None:
    """``assert`` vanishes under -O; it may only state our own invariants, and outside of ``testing`` there are none."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in _modules("src")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert)
    ]
    assert found == []
