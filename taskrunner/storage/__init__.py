"""Floor 2: the only one that knows SQL. Verbs build units, an engine commits them."""
