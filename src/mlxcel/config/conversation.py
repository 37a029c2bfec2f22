"""Options of chat templates, tools and reasoning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mlxcel.config.option import option, parse_int, switch
from mlxcel.config.values import parse_json_object


@dataclass(frozen=True, slots=True)
class TemplateConfig:
    """Chat template, tools and reasoning"""

    template: str = option(
        "",
        "--chat-template",
        env="LLAMA_ARG_CHAT_TEMPLATE",
        metavar="TEXT",
        help="Jinja source that replaces the checkpoint's template",
    )
    template_file: str = option(
        "", "--chat-template-file", env="LLAMA_ARG_CHAT_TEMPLATE_FILE", metavar="FILE", help="file with a chat template"
    )
    template_kwargs: dict[str, Any] = field(
        default_factory=dict,
        metadata=option(
            None,
            "--chat-template-kwargs",
            env="LLAMA_ARG_CHAT_TEMPLATE_KWARGS",
            parse=parse_json_object,
            metavar="JSON",
            help="default template variables; a request's own win",
        ).metadata,
    )
    tool_call_parser: str = option(
        "",
        "--tool-call-parser",
        env="MLXCEL_TOOL_CALL_PARSER",
        metavar="NAME",
        help="tool-call format (default: told from the template)",
    )
    skip_chat_parsing: bool = switch(
        False,
        "--skip-chat-parsing",
        env="LLAMA_ARG_SKIP_CHAT_PARSING",
        off=("--no-skip-chat-parsing",),
        help="return the model's text verbatim, without reasoning and tool calls",
    )
    prefill_assistant: bool = switch(
        True,
        "--prefill-assistant",
        env="LLAMA_ARG_PREFILL_ASSISTANT",
        off=("--no-prefill-assistant",),
        off_env=("LLAMA_ARG_NO_PREFILL_ASSISTANT",),
        help="continue a trailing assistant message",
    )
    spm_infill: bool = switch(False, "--spm-infill", help="put the suffix before the prefix in POST /infill")
    reasoning: str = option(
        "auto",
        "-rea",
        "--reasoning",
        env="LLAMA_ARG_REASONING",
        choices=("on", "off", "auto"),
        help="thinking of models that can",
    )
    reasoning_format: str = option(
        "auto",
        "--reasoning-format",
        env="LLAMA_ARG_THINK",
        choices=("none", "deepseek", "deepseek-legacy", "auto"),
        help="where thoughts go: reasoning_content (deepseek, auto), the content (none) or both",
    )
    reasoning_effort: str = option(
        "",
        "--reasoning-effort",
        env="LLAMA_ARG_REASONING_EFFORT",
        metavar="WORD",
        help="default effort given to the template",
    )
    reasoning_budget_tokens: int = option(
        -1,
        "--reasoning-budget",
        env=("LLAMA_ARG_THINK_BUDGET", "LLAMA_ARG_REASONING_BUDGET"),
        parse=parse_int(-1),
        metavar="N",
        help="thinking tokens (-1: unlimited, 0: none)",
    )
    reasoning_budget_message: str = option(
        "",
        "--reasoning-budget-message",
        env="LLAMA_ARG_THINK_BUDGET_MESSAGE",
        metavar="TEXT",
        help="text put before the forced end of a thinking block",
    )
    reasoning_alias_field: str = option(
        "reasoning",
        "--reasoning-alias-field",
        env="MLXCEL_REASONING_ALIAS_FIELD",
        choices=("none", "reasoning"),
        help="second field that repeats reasoning_content",
    )
