"""Documents become token shards, piece by piece, in any order and on any number of processes."""
