"""The response object around an answer: ids, usage, and every field of the request that it repeats."""

from __future__ import annotations

from typing import Any

import orjson

from mlxcel.core.jobs import ChatJob
from mlxcel.core.usage import Usage
from mlxcel.wire.context import RequestContext
from mlxcel.wire.openai.responses.request import ResponsesRequest, TextConfig
from mlxcel.wire.openai.responses.tools import ToolSet


def response_id(context: RequestContext) -> str:
    """The id shown to the client."""
    return f"resp_{context.request_id}"


def usage_object(usage: Usage) -> dict[str, Any]:
    """``usage`` of a response."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def response_head(request: ResponsesRequest, job: ChatJob, tools: ToolSet, context: RequestContext) -> dict[str, Any]:
    """The response object before anything was generated: every field there is, with what the request asked for."""
    choice, reasoning = request.tool_choice, request.reasoning
    return {
        "id": response_id(context),
        "object": "response",
        "created_at": int(context.created_s),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "model": context.facts.model_name,
        "output": [],
        "output_text": "",
        "usage": None,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "parallel_tool_calls": job.parallel_tool_calls,
        "previous_response_id": request.previous_response_id,
        "conversation": None if request.conversation_id is None else {"id": request.conversation_id},
        "prompt": None,
        "prompt_cache_key": request.prompt_cache_key,
        "prompt_cache_retention": request.prompt_cache_retention,
        "prompt_cache_options": None,
        "prompt_cache_diagnostics": None,
        "reasoning": {
            "effort": None if reasoning is None or reasoning.effort is None else str(reasoning.effort),
            "summary": None if reasoning is None else reasoning.summary,
        },
        "safety_identifier": request.safety_identifier,
        "service_tier": request.service_tier or "default",
        "store": request.stores,
        "temperature": job.options.sampling.temperature,
        "top_p": job.options.sampling.top_p,
        "top_logprobs": request.top_logprobs or 0,
        "text": _text(request.text),
        "tool_choice": "auto"
        if choice is None
        else choice
        if isinstance(choice, str)
        else choice.model_dump(exclude_none=True),
        "tools": list(tools.echo),
        "tool_usage": None,
        "truncation": "disabled",
        "metadata": request.metadata or {},
        "moderation": None,
        "access_programs": None,
        "image": None,
        "input_transformations": None,
        "user": request.user,
    }


def mark_cancelled(body: bytes) -> bytes:
    """A stored response object, cancelled."""
    return orjson.dumps(orjson.loads(body) | {"status": "cancelled"})


def _text(text: TextConfig | None) -> dict[str, Any]:
    shown: dict[str, Any] = {"format": {"type": "text"}}
    if text is not None and text.format is not None and text.format.type != "text":
        shown["format"] = {"type": text.format.type}
        if text.format.type == "json_schema":
            form = text.format.model_dump(by_alias=True)
            shown["format"] = form | {"name": text.format.name or "response"}
    if text is not None and text.verbosity is not None:
        shown["verbosity"] = text.verbosity
    return shown
