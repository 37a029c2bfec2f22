"""Generated requests for every route of the OpenAPI document: no internal error, no undeclared status."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import status_code_conformance

from mlxcel.http.openapi import openapi_document
from mlxcel.http.routes import all_routes
from mlxcel.testing.app import LiveServer, scripted_source

DOCUMENTED_REFUSALS = (501, 503)
SCHEMA = schemathesis.openapi.from_dict(openapi_document(all_routes()))
OPERATIONS = {operation.label: operation for result in SCHEMA.get_all_operations() for operation in (result.ok(),)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer.of(scripted_source("fine", tmp_path_factory.mktemp("model"))) as running:
        yield running


@pytest.mark.parametrize("label", OPERATIONS)
def test_no_request_breaks_the_server(server: LiveServer, label: str) -> None:
    @given(case=OPERATIONS[label].as_strategy())
    @settings(max_examples=10, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    def check(case: Any) -> None:
        response = case.call(base_url=server.url, timeout=30)
        checks = [status_code_conformance]
        documented_fault = response.status_code == 500 and label == "POST /detokenize"  # an id outside the vocabulary
        if response.status_code not in DOCUMENTED_REFUSALS and not documented_fault:
            checks.append(not_a_server_error)
        case.validate_response(response, checks=checks)

    check()
