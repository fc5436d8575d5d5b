"""From files of text to rows of token ids, by way of the token shards on disk."""
