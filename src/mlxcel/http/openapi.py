"""The OpenAPI document and a docs page, both from the route table; the page loads nothing from anywhere."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from mlxcel import __version__
from mlxcel.http.route import Route

_ALWAYS = (401, 403, 405, 500)
_REASONS = {
    400: "The request is invalid; the message names the field",
    401: "The API key is missing or wrong",
    403: "Refused: a foreign Host header, or a feature that is switched off",
    404: "Not found",
    405: "Wrong method",
    413: "The body is larger than the limit",
    415: "The body is not JSON",
    500: "Internal error; the log has the details",
    501: "The loaded model, or this server, cannot do that",
    503: "Busy or loading; retry later",
    504: "A worker did not answer in time",
}


def openapi_document(routes: Sequence[Route], *, prefix: str = "") -> dict[str, Any]:
    """An OpenAPI 3.1 document of every route and alias."""
    models: list[type[BaseModel]] = list(dict.fromkeys(route.request for route in routes if route.request is not None))
    _, definitions = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, Any] = {}
    for route in routes:
        for path in route.paths:
            operation = _operation(route, path)
            paths.setdefault(prefix + path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "mlxcel", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": definitions.get("$defs", {}) | {"Error": _ERROR_SCHEMA},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


_ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        },
    },
}


def _operation(route: Route, path: str) -> dict[str, Any]:
    name = re.sub(r"[^a-z0-9]+", "_", f"{route.method}_{path}".lower()).strip("_")
    content: dict[str, Any] = {"application/json": {}}
    if route.streams:
        content["text/event-stream"] = {}
    if route.media_type is not None:
        content = {route.media_type: {}}
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": route.summary,
        "tags": [route.tag],
        "responses": {str(status): {"description": "Success", "content": content} for status in route.successes}
        | {str(status): _failure(status) for status in sorted({*route.statuses, *_ALWAYS})},
    }
    parameters = [
        {"name": parameter, "in": "path", "required": True, "schema": {"type": "string"}}
        for parameter in re.findall(r"\{(\w+)\}", path)
    ]
    parameters += [
        {"name": parameter, "in": "query", "required": False, "schema": {"type": "string"}} for parameter in route.query
    ]
    if parameters:
        operation["parameters"] = parameters
    if route.request is not None:
        schema = {"$ref": f"#/components/schemas/{route.request.__name__}"}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if route.open:
        operation["security"] = []
    return operation


def _failure(status: int) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    content = {"application/json": {"schema": schema}}
    return {"description": _REASONS.get(status, "Error"), "content": content}


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>mlxcel API</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; width: 100%; }}
td, th {{ text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #8884; vertical-align: top; }}
code {{ font-size: .9em; }}
</style></head><body>
<h1>mlxcel {version}</h1>
<p>The machine-readable description is at <a href="openapi.json">openapi.json</a>.</p>
{sections}
</body></html>
"""


def docs_page(routes: Sequence[Route], *, prefix: str = "") -> str:
    """A plain HTML page that lists every route."""
    sections = []
    for tag in dict.fromkeys(route.tag for route in routes):
        rows = "".join(
            f"<tr><td>{route.method}</td><td>{_paths(route, prefix)}</td><td>{html.escape(route.summary)}</td></tr>"
            for route in routes
            if route.tag == tag
        )
        head = "<tr><th>Method</th><th>Path</th><th></th></tr>"
        sections.append(f"<h2>{html.escape(tag)}</h2><table>{head}{rows}</table>")
    return _PAGE.format(version=html.escape(__version__), sections="\n".join(sections))


def _paths(route: Route, prefix: str) -> str:
    return "<br>".join(f"<code>{html.escape(prefix + path)}</code>" for path in route.paths)
