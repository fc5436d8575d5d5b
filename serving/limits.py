"""What a server takes from its clients; `GET /info` shows it to them."""

from pydantic import BaseModel, ConfigDict, Field


class Limits(BaseModel):
    """Upper bounds of what is asked, and of what waits. Tokens count special ones too."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_body_bytes: int = Field(default=2 << 20, ge=1, description="bytes of a request's body")
    max_items: int = Field(default=256, ge=1, description="texts, pairs or questions of a request")
    max_request_tokens: int = Field(
        default=32768, ge=1, description="tokens of all rows that a request is made into"
    )
    max_answer_numbers: int = Field(
        default=4_000_000,
        ge=1,
        description="numbers of all features, or outputs of heads, of a request",
    )
    max_answer_characters: int = Field(
        default=16 << 20, ge=1, description="characters of all texts with a [MASK] filled"
    )
    max_explained_tokens: int = Field(
        default=128, ge=1, description="tokens of a text whose attention is asked for"
    )
    max_waiting_tokens: int = Field(
        default=65536, ge=1, description="tokens that wait at an encoder; above, clients get 429"
    )
    max_batch_tokens: int = Field(
        default=512, ge=1, description="tokens of a micro-batch; of a GPU 16384 are better"
    )
    deadline_seconds: float = Field(
        default=30, gt=0, description="seconds within which a request is begun, or gets 503"
    )
    body_seconds: float = Field(
        default=30,
        gt=0,
        description="seconds in which a body has to arrive, or its client gets 408",
    )
