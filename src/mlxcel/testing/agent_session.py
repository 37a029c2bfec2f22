"""A scripted model that plays one session with a coding agent: read a file, edit it, run a command, finish.

The agent's own requests decide what it says. The tools come from the declarations in the prompt, their arguments are
spelled as their schemas spell them, and the results that are already in the prompt tell how far the session is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FINAL_ANSWER = "The session is complete."
_TOOLS_OPEN, _TOOLS_CLOSE = "These functions may be called:\n<tools>\n", "\n</tools>\n"
_READERS, _EDITORS = ("Read", "read"), ("Edit", "edit")
_SHELLS = ("Bash", "bash", "exec_command", "shell_command", "shell")
_SPELLINGS = {
    "path": ("file_path", "filePath", "path"),
    "old": ("old_string", "oldString"),
    "new": ("new_string", "newString"),
    "command": ("command", "cmd"),
}


@dataclass(slots=True)
class AgentSession:
    """The task: ``before`` in ``file`` becomes ``after``, then a command copies the file to ``copy``.

    Attributes:
        thinks: whether every answer begins with a thinking block.
        prompts: every prompt with tools, as the model saw it.
    """

    folder: Path
    thinks: bool = False
    before: str = "colour = red"
    after: str = "colour = blue"
    prompts: list[str] = field(default_factory=list)

    @property
    def file(self) -> Path:
        return self.folder / "settings.ini"

    @property
    def copy(self) -> Path:
        return self.folder / "copy.ini"

    def say(self, prompt: str) -> str:
        """The answer to a prompt. Without tools it is a side request, for a title as a rule."""
        tools = _declared_tools(prompt)
        if not tools:
            return "A session"
        self.prompts.append(prompt)
        steps = self._steps(tools)
        done = self.results_in(prompt)
        answer = steps[done] if done < len(steps) else FINAL_ANSWER
        return f"<think>\nStep {done}.\n</think>\n\n{answer}" if self.thinks else answer

    def results_in(self, prompt: str) -> int:
        """How many tool results a prompt holds."""
        return prompt.partition(_TOOLS_CLOSE)[2].count("\n<tool_response>\n")

    def _steps(self, tools: dict[str, dict[str, Any]]) -> list[str]:
        file, copy = str(self.file), str(self.copy)
        shell = _known(tools, _SHELLS)
        reader, editor = _known(tools, _READERS) or shell, _known(tools, _EDITORS) or shell
        show, change = f"cat {file}", f"sed -i 's/{self.before}/{self.after}/' {file}"
        return [
            _call(reader, tools[reader], path=file, command=show),
            _call(editor, tools[editor], path=file, old=self.before, new=self.after, command=change),
            _call(shell, tools[shell], command=f"cp {file} {copy} && cat {copy}"),
        ]


def _declared_tools(prompt: str) -> dict[str, dict[str, Any]]:
    """Tool name -> parameters, from the declarations of the tiny tokenizer's template."""
    if _TOOLS_OPEN not in prompt:
        return {}
    lines = prompt.partition(_TOOLS_OPEN)[2].partition(_TOOLS_CLOSE)[0].splitlines()
    functions = [json.loads(line)["function"] for line in lines]
    return {function["name"]: function["parameters"] for function in functions}


def _known(tools: dict[str, dict[str, Any]], names: tuple[str, ...]) -> str:
    return next((name for name in names if name in tools), "")


def _call(name: str, parameters: dict[str, Any], **values: str) -> str:
    """A call with those values that the schema knows; other required strings say "session"."""
    properties: dict[str, Any] = parameters["properties"]
    arguments: dict[str, Any] = {}
    for role, value in values.items():
        for spelling in _SPELLINGS[role]:
            if spelling in properties:
                is_list = properties[spelling].get("type") == "array"
                arguments[spelling] = ["bash", "-c", value] if is_list else value
    for required in parameters.get("required", ()):
        arguments.setdefault(required, "session")
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
