"""Floor 3: what a task may hold beside its rows, such as a conversation."""
