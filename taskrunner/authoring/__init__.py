"""Floor 4: what an author of tasks writes with: definitions, their inputs and retries, the context, the handle."""
