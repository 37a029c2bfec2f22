"""Use cases: what happens between a neutral job and its events. Async, no JSON, no tensors."""
