"""A version to champion, or a refusal: the gate, the alias, who moved it when."""
