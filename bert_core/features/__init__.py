"""Hidden states as features: which layers, for which tokens, words or texts (section 5.3)."""
