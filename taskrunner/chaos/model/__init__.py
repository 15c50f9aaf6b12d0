"""The life of tasks as plain Python has it, beside the store's: after each step both have the same rows."""
