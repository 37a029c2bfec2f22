"""Which model types can be served."""

from __future__ import annotations

from mlxcel.runners.generate.decoder.spec import native_families


def causal_model_types() -> dict[str, str]:
    """Every causal model type by name, with the path that serves it ("native" or "transformers")."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    native = native_families()
    names = sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *native})
    return {name: "native" if name in native else "transformers" for name in names}
