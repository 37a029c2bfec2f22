"""All known formats, and the choice of one for a loaded model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mlxcel.text.tool_formats.bare_json import GENERIC, LLAMA3
from mlxcel.text.tool_formats.base import ToolFormat
from mlxcel.text.tool_formats.channels import ATEM, HARMONY
from mlxcel.text.tool_formats.command_r import COMMAND_R
from mlxcel.text.tool_formats.deepseek import DEEPSEEK
from mlxcel.text.tool_formats.function_tag import FUNCTIONARY_V31
from mlxcel.text.tool_formats.functionary import FUNCTIONARY_V32
from mlxcel.text.tool_formats.gemma import FUNCTION_GEMMA, GEMMA4
from mlxcel.text.tool_formats.glm import GLM, LONGCAT
from mlxcel.text.tool_formats.granite import GRANITE
from mlxcel.text.tool_formats.hermes import HERMES, QWEN3_CODER
from mlxcel.text.tool_formats.invoke_tag import DEEPSEEK_V32, MINIMAX_M2
from mlxcel.text.tool_formats.kimi import KIMI_K2
from mlxcel.text.tool_formats.minimax_m3 import MINIMAX_M3
from mlxcel.text.tool_formats.mistral import MISTRAL_BRACKETED, MISTRAL_NEMO
from mlxcel.text.tool_formats.pythonic import PYTHONIC

TokenId = Callable[[str], int | None]

# What a template must contain for its format, most telling first: every text of a row.
_TEMPLATE_SIGNS: tuple[tuple[ToolFormat, tuple[str, ...]], ...] = (
    (ATEM, ("<atem:",)),
    (HARMONY, ("<|channel|>", "<|message|>")),
    (MINIMAX_M3, ("]<]minimax[>[",)),
    (MINIMAX_M2, ("<minimax:tool_call>",)),
    (GEMMA4, ("<|tool_call>",)),
    (FUNCTION_GEMMA, ("<start_function_call>",)),
    (KIMI_K2, ("<|tool_call_argument_begin|>",)),
    (DEEPSEEK_V32, ("｜DSML｜",)),
    (DEEPSEEK, ("<｜tool▁call▁begin｜>",)),
    (LONGCAT, ("<longcat_tool_call>",)),
    (GLM, ("<arg_key>",)),
    (MISTRAL_BRACKETED, ("[TOOL_CALLS]", "[ARGS]")),
    (MISTRAL_NEMO, ("[TOOL_CALLS]",)),
    (COMMAND_R, ("<|START_ACTION|>",)),
    (COMMAND_R, ("Action:", "<|CHATBOT_TOKEN|>")),
    (FUNCTIONARY_V32, (">>>",)),
    (QWEN3_CODER, ("<function=", "<parameter=")),
    (FUNCTIONARY_V31, ("<function=",)),
    (FUNCTIONARY_V31, ("`<function`",)),
    (PYTHONIC, ("<|tool_call_start|>",)),
    (PYTHONIC, ("<|tool_list_start|>",)),
    (PYTHONIC, ("[func_name1(",)),
    (GRANITE, ("<|tool_call|>", "<|start_of_role|>")),
    (GENERIC, ("<tool_calls>",)),
    (HERMES, ("<tool_call>",)),
    (LLAMA3, ("<|python_tag|>",)),
    (LLAMA3, ('"parameters":',)),
)
# For models without a telling template: a control token that only one family has.
_VOCABULARY_SIGNS: tuple[tuple[ToolFormat, str], ...] = (
    (KIMI_K2, "<|tool_call_argument_begin|>"),
    (GEMMA4, "<|tool_call>"),
    (FUNCTION_GEMMA, "<start_function_call>"),
    (DEEPSEEK, "<｜tool▁call▁begin｜>"),
    (LONGCAT, "<longcat_tool_call>"),
    (GLM, "<arg_key>"),
    (MISTRAL_BRACKETED, "[ARGS]"),
    (MISTRAL_NEMO, "[TOOL_CALLS]"),
    (COMMAND_R, "<|START_ACTION|>"),
    (PYTHONIC, "<|tool_call_start|>"),
    (GRANITE, "<|tool_call|>"),
    (LLAMA3, "<|python_tag|>"),
    (HERMES, "<tool_call>"),
)
_MODEL_TYPES: Mapping[str, ToolFormat] = {
    "gpt_oss": HARMONY,
    "minimax_m2": MINIMAX_M2,
    "glm4_moe": GLM,
    "glm4_moe_lite": GLM,
    "glm_moe_dsa": GLM,
    "glm4v_moe": GLM,
    "longcat_flash": LONGCAT,
    "longcat_flash_ngram": LONGCAT,
}

FORMATS: Mapping[str, ToolFormat] = {
    fmt.name: fmt
    for fmt in (
        HERMES,
        QWEN3_CODER,
        MISTRAL_NEMO,
        MISTRAL_BRACKETED,
        MINIMAX_M2,
        MINIMAX_M3,
        FUNCTIONARY_V31,
        FUNCTIONARY_V32,
        COMMAND_R,
        GRANITE,
        GEMMA4,
        FUNCTION_GEMMA,
        LLAMA3,
        KIMI_K2,
        PYTHONIC,
        GLM,
        LONGCAT,
        DEEPSEEK,
        DEEPSEEK_V32,
        HARMONY,
        ATEM,
        GENERIC,
    )
}


def format_by_name(name: str) -> ToolFormat:
    """The format that ``--tool-call-parser`` names. Raises KeyError for an unknown name."""
    return FORMATS[name]


def detect_format(chat_template: str, token_id: TokenId, model_type: str | None = None) -> ToolFormat:
    """Choose the format of a loaded model: by its template, then by its architecture, then by its vocabulary.

    Args:
        chat_template: Jinja source; "" when the model has none.
        token_id: the id of a token given its text, None when the vocabulary has no such token.
        model_type: ``model_type`` of the checkpoint's config.

    Returns:
        The generic JSON fallback when nothing tells.
    """
    for fmt, signs in _TEMPLATE_SIGNS:
        if all(sign in chat_template for sign in signs):
            return fmt
    if model_type is not None and model_type in _MODEL_TYPES:
        return _MODEL_TYPES[model_type]
    for fmt, token in _VOCABULARY_SIGNS:
        if token_id(token) is not None:
            return fmt
    return GENERIC
