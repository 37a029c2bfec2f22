"""How much of the machine an owner thread takes when another model decodes beside it."""

from __future__ import annotations

import contextlib
import os
import threading

import torch

_YIELDING = 10  # nice value: the scheduler gives a decoder beside it most of a contended core


def take_threads(count: int) -> None:
    """Give torch ``count`` threads for operations of the calling thread (0: its choice); others keep what they have."""
    if not count:
        return
    others = torch.get_num_threads()
    torch.set_num_threads(count)  # of this thread, and of all that start later
    if others != count:
        restore = threading.Thread(target=torch.set_num_threads, args=(others,))
        restore.start()
        restore.join()


def yield_to_decoders() -> None:
    """Use what a decoder leaves: half the processors, at a lower priority where the system knows one for a thread.

    A forward pass of many texts takes every core for a while, and someone may be reading tokens as they come.
    """
    take_threads(max((os.cpu_count() or 2) // 2, 1))
    if hasattr(os, "setpriority"):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _YIELDING)
