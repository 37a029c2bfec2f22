"""Saving what a slot computed last, and computing it again so that the next prompt finds it in the cache."""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass

from mlxcel.core.errors import CapabilityMissing, InvalidRequest
from mlxcel.core.events import Failed
from mlxcel.core.sampling import SamplingParams
from mlxcel.core.work import CachePolicy, GenerateWork, SlotRecord
from mlxcel.services.model import ServedModel
from mlxcel.stores.slots import SlotFiles


@dataclass(frozen=True, slots=True)
class SlotFileResult:
    """Tokens saved or restored, bytes of the file, and how long it took."""

    tokens: int
    size_bytes: int
    elapsed_s: float


class SlotService:
    """Slots of a served model as files.

    Args:
        files: where; None when the operator did not say.
    """

    def __init__(self, model: ServedModel, files: SlotFiles | None) -> None:
        self._model = model
        self._files = files

    async def save(self, slot: int, name: str) -> SlotFileResult:
        """Write the tokens that the slot computed last.

        Raises:
            CapabilityMissing: there is no directory for it.
            InvalidRequest: an unknown slot, a slot that has computed nothing, or an unusable file name.
        """
        files, started_s = self.check(slot), time.perf_counter()
        record = await self._model.client.run_exclusive(lambda runner: runner.slot_record(slot))
        if record is None:
            raise InvalidRequest(f"slot {slot} has computed nothing yet")
        size_bytes = await asyncio.to_thread(files.save, name, record, self._owner())
        return SlotFileResult(len(record.token_ids), size_bytes, time.perf_counter() - started_s)

    async def restore(self, slot: int, name: str, work_id: str) -> SlotFileResult:
        """Read saved tokens and compute their state, as far as the prompt cache does not hold it.

        Raises:
            CapabilityMissing, InvalidRequest: as :meth:`save`; also for a file of another model.
            ServerBusy: the queue is full.
        """
        files, started_s = self.check(slot), time.perf_counter()
        limit = self._model.context_tokens
        record, size_bytes = await asyncio.to_thread(files.load, name, self._owner(), limit)
        if not all(0 <= token < self._model.tokenizer.vocab_size for token in record.token_ids):
            raise InvalidRequest("'filename': the saved slot is damaged", param="filename")
        await self._compute(record, work_id)
        await self._model.client.run_exclusive(lambda runner: runner.set_slot_record(slot, record))
        return SlotFileResult(len(record.token_ids), size_bytes, time.perf_counter() - started_s)

    async def erase(self, slot: int) -> int:
        """Forget what the slot computed last; returns how many tokens that was. Other slots may share the cached state,
        which therefore stays where it is.

        Raises:
            CapabilityMissing, InvalidRequest: as :meth:`save`.
        """
        self.check(slot)
        record = await self._model.client.run_exclusive(lambda runner: runner.set_slot_record(slot, None))
        return 0 if record is None else len(record.token_ids)

    def check(self, slot: int) -> SlotFiles:
        """
        Raises:
            CapabilityMissing: there is no directory for slots.
            InvalidRequest: no such slot.
        """
        if self._files is None:
            raise CapabilityMissing("This server does not support slots action. Start it with `--slot-save-path`")
        if not 0 <= slot < self._model.client.stats().max_batch_size:
            raise InvalidRequest("Invalid slot ID")
        return self._files

    async def _compute(self, record: SlotRecord, work_id: str) -> None:
        """Run the tokens as a prompt. One token has to be drawn; it is thrown away."""
        work = GenerateWork(
            id=work_id,
            prompt_ids=record.token_ids[: self._model.context_tokens - 1],
            max_tokens=1,
            sampling=SamplingParams(temperature=0.0),
            cache=CachePolicy(namespace=record.namespace),
            adapters=record.adapters,
            remembered=False,
        )
        with self._model.client.reserve() as place:
            stream = self._model.client.submit(place, work)
        try:
            async for event in stream:
                if isinstance(event, Failed):
                    raise event.error
        finally:
            await stream.aclose()

    def _owner(self) -> str:
        parts = (self._model.client.info.fingerprint, self._model.tokenizer.fingerprint)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()
