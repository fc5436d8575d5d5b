"""The limits of requests; `GET /info` shows them to clients."""

from pydantic import BaseModel, ConfigDict, Field

BYTES_OF_A_TOKEN = 32
"""Of UTF-8. Text has four to eight; what has more is not worth what it takes to find its tokens."""


class Limits(BaseModel):
    """Upper bounds of what is asked, and of what waits. Tokens count special ones too."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_body_bytes: int = Field(default=2 << 20, ge=1, description="largest body of a request")
    max_items: int = Field(default=256, ge=1, description="texts, pairs or questions in a request")
    max_request_tokens: int = Field(
        default=32768, ge=1, description="tokens of all rows of a request"
    )
    max_answer_numbers: int = Field(
        default=4_000_000,
        ge=1,
        description="numbers in an answer with features or raw outputs",
    )
    max_answer_characters: int = Field(
        default=16 << 20, ge=1, description="characters of all texts with [MASK] filled"
    )
    max_explained_tokens: int = Field(
        default=128, ge=1, description="tokens of a text to show the attention of"
    )
    max_waiting_tokens: int = Field(
        default=65536, ge=1, description="queue length of a model; above, clients get 429"
    )
    max_batch_tokens: int = Field(
        default=512, ge=1, description="largest batch; on a GPU 16384 is better"
    )
    deadline_seconds: float = Field(
        default=30, gt=0, description="longest time in the queue; then clients get 503"
    )
    body_seconds: float = Field(
        default=30,
        gt=0,
        description="time for a body to arrive; then clients get 408",
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
