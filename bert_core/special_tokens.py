"""The special tokens of a vocabulary, of BERT, RoBERTa or Gemma, and its size."""

from dataclasses import dataclass

from tokenizers import Tokenizer

from bert_core.errors import UserError


class TokenizerError(UserError):
    """A tokenizer file that is missing, damaged or not BERT's."""


@dataclass(frozen=True)
class SpecialTokens:
    """The five special tokens by name."""

    pad: str
    unk: str
    cls: str
    sep: str
    mask: str

    @property
    def all(self) -> tuple[str, str, str, str, str]:
        """The five, in the order of their ids in a vocabulary trained here."""
        return (self.pad, self.unk, self.cls, self.sep, self.mask)


BERT_TOKENS = SpecialTokens("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_TOKENS = SpecialTokens("<pad>", "<unk>", "<s>", "</s>", "<mask>")
GEMMA_TOKENS = SpecialTokens("<pad>", "<unk>", "<bos>", "<eos>", "<mask>")
"""Those of multilingual encoders with Gemma's vocabulary (mmBERT, arXiv 2509.06888)."""

KINDS = (BERT_TOKENS, GEMMA_TOKENS, ROBERTA_TOKENS)
"""All that are known. In Gemma's vocabulary `<s>` is a tag of HTML, so it comes before RoBERTa."""

SPECIAL_TOKENS = BERT_TOKENS.all


@dataclass(frozen=True)
class SpecialTokenIds:
    """The ids of the five special tokens in one vocabulary.

    `num_between` of `sep` stand between the texts of a pair.
    """

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int
    num_between: int = 1

    @property
    def all(self) -> tuple[int, int, int, int, int]:
        """The five ids, in the order of `SPECIAL_TOKENS`."""
        return (self.pad, self.unk, self.cls, self.sep, self.mask)

    @property
    def num_of_pair(self) -> int:
        """Special tokens of a row of two texts."""
        return 2 + self.num_between


def special_tokens(tokenizer: Tokenizer) -> SpecialTokens:
    """The names that the vocabulary has for all five; BERT's where it has no set whole."""
    if tokenizer.token_to_id(BERT_TOKENS.cls) is not None:
        return BERT_TOKENS
    for names in KINDS:
        if all(tokenizer.token_to_id(token) is not None for token in names.all):
            return names
    return BERT_TOKENS


def special_token_ids(tokenizer: Tokenizer) -> SpecialTokenIds:
    """Looks the special tokens up by name; raises `TokenizerError` if one is missing."""
    names = special_tokens(tokenizer)
    ids = {token: tokenizer.token_to_id(token) for token in names.all}
    missing = [token for token, index in ids.items() if index is None]
    if missing:
        raise TokenizerError(
            "the vocabulary lacks special tokens",
            ", ".join(missing),
            f"use a vocabulary with {' or '.join(' '.join(names.all) for names in KINDS)}",
        )
    found = (index for index in ids.values() if index is not None)
    # The template of rows says how many, as `load_tokenizer` sets it.
    of_pair = tokenizer.num_special_tokens_to_add(is_pair=True)
    return SpecialTokenIds(*found, num_between=max(1, of_pair - 2))


def num_embeddings(tokenizer: Tokenizer) -> int:
    """Rows an embedding needs: one more than the highest id, below which ids may have gaps."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
