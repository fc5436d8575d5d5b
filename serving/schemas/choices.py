"""What clients choose by name, as types that load nothing.

Their like in `bert_core` would load torch, which a client has no use for.
"""

from typing import Literal

Aggregation = Literal["none", "simple", "first", "average", "max"]
Masking = Literal["token", "rest_of_word"]
Pooling = Literal["cls", "first", "max", "mean"]
Unit = Literal["token", "word", "text"]
