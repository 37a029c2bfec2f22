"""The body of the reranking routes. ``documents`` asks for Jina's and Cohere's envelope, ``texts`` alone for TEI's array."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from mlxcel.core.chat import MediaPart
from mlxcel.core.errors import InvalidRequest
from mlxcel.core.vectors import RankItem, RerankJob
from mlxcel.wire.parse import WireModel
from mlxcel.wire.vectors import ImageUrl

MAX_DOCUMENTS = 4096


class Item(WireModel):
    """A query or document that may carry an image. Further keys are kept, so that it can be repeated as it was sent."""

    model_config = ConfigDict(extra="allow")

    text: str | None = None
    image: str | None = None
    image_url: ImageUrl | str | None = None


class RerankRequest(WireModel):
    """Request body."""

    model: str | None = None
    query: str | Item
    documents: list[str | Item] | None = None
    texts: list[str] | None = None
    top_n: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    instruction: str | None = None
    raw_scores: bool | None = None
    truncate: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _documented_messages(cls, body: Any) -> Any:
        """The documented sentences for a query or a list of the wrong form."""
        if not isinstance(body, dict):
            return body
        query = body.get("query")
        if query is None:
            raise ValueError('"query" must be provided')
        if not isinstance(query, (str, dict)):
            raise ValueError('"query" must be a string')
        name = "documents" if body.get("documents") is not None or body.get("texts") is None else "texts"
        items = body.get(name)
        kinds = (str, dict) if name == "documents" else (str,)
        if not isinstance(items, list) or not items or not all(isinstance(item, kinds) for item in items):
            raise ValueError(f'"{name}" must be a non-empty string array')
        return body

    @property
    def is_tei(self) -> bool:
        """True for TEI's shape; a body with both lists stays with the envelope."""
        return self.documents is None


def to_rerank_job(request: RerankRequest) -> RerankJob:
    """The neutral job.

    Raises:
        InvalidRequest: too many documents.
    """
    documents = request.documents if request.documents is not None else request.texts or []
    if len(documents) > MAX_DOCUMENTS:
        raise InvalidRequest(f"at most {MAX_DOCUMENTS} documents are ranked at once", param="documents")
    return RerankJob(
        query=_item(request.query),
        documents=tuple(_item(document) for document in documents),
        top_n=request.top_n,
        instruction=request.instruction,
        raw=bool(request.raw_scores and request.is_tei),
    )


def _item(given: str | Item) -> RankItem:
    if isinstance(given, str):
        return RankItem(given)
    image = given.image if given.image is not None else given.image_url
    url = image.url if isinstance(image, ImageUrl) else image
    return RankItem(given.text, None if url is None else MediaPart("image", url))
