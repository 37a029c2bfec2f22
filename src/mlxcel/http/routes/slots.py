"""Slots: their state, and their tokens as files."""

from __future__ import annotations

from starlette.responses import Response

from mlxcel.core.errors import CapabilityMissing, InvalidRequest, ServerBusy
from mlxcel.http.call import Call
from mlxcel.http.responses import JsonResponse
from mlxcel.http.route import Route
from mlxcel.wire.llama_server.props import render_slots
from mlxcel.wire.llama_server.slots import SlotFileRequest, render_restored, render_saved
from mlxcel.wire.parse import parse_body


async def slots(call: Call) -> Response:
    """The state of every slot and of queued requests; with ``fail_on_no_slot=1``, 503 when every slot is taken."""
    if not call.rooms.endpoints.slots:
        raise CapabilityMissing("GET /slots is off; start the server without --no-slots")
    model, found = call.rooms.status.model, call.rooms.status.slots()
    wants_idle = call.request.query_params.get("fail_on_no_slot", "") not in ("", "0")
    if wants_idle and all(slot.state != "idle" for slot in found):
        raise ServerBusy("no slot available")
    return JsonResponse(render_slots(found, model.name, model.context_tokens))


async def act(call: Call) -> Response:
    """Save what a slot computed last, restore it, or forget it."""
    service, number = call.rooms.slots, call.request.path_params["id"]
    slot = int(number) if number.isdecimal() and len(number) < 10 else -1
    action = call.request.query_params.get("action", "")
    if action == "erase":
        return JsonResponse({"id_slot": slot, "n_erased": await service.erase(slot)})
    service.check(slot)
    if action not in ("save", "restore"):
        raise InvalidRequest("Invalid action", param="action")
    name = parse_body(SlotFileRequest, await call.json_bytes()).filename
    if action == "save":
        saved = await service.save(slot, name)
        return JsonResponse(render_saved(slot, name, saved.tokens, saved.size_bytes, saved.elapsed_s))
    restored = await service.restore(slot, name, call.id)
    return JsonResponse(render_restored(slot, name, restored.tokens, restored.size_bytes, restored.elapsed_s))


ROUTES = (
    Route(
        "GET", "/slots", slots, "State of every slot", statuses=(501, 503), tag="llama-server", query=("fail_on_no_slot",)
    ),
    Route(
        "POST",
        "/slots/{id}",
        act,
        "Save, restore or erase a slot (--slot-save-path)",
        request=SlotFileRequest,
        statuses=(400, 413, 415, 501, 503),
        tag="llama-server",
        query=("action",),
    ),
)
