"""The limits of requests; `GET /info` shows them to clients."""

from pydantic import BaseModel, ConfigDict, Field

BYTES_OF_A_TOKEN = 32
"""Of UTF-8. Text has four to eight; what has more is not worth what it takes to find its tokens."""


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

    @property
    def max_body_fields(self) -> int:
        """Names of fields in a JSON body: an item has two at most, and a request has a few."""
        return 4 * self.max_items + 256

    @property
    def max_body_values(self) -> int:
        """Values in a JSON body: twice as many as tokens, which as numbers are most of them.

        So a request with a few too many is refused by the name of the field.
        """
        return 2 * self.max_request_tokens + 4 * self.max_items + 256

    @property
    def max_text_bytes(self) -> int:
        """Bytes of all texts in UTF-8: a tokenizer takes a hundred bytes of memory for each."""
        return max(self.max_request_tokens * BYTES_OF_A_TOKEN, self.max_body_bytes // 2)
