"""From files of text to rows of token ids: corpus, token shards, row plans, masks, batches."""
