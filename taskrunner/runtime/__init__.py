"""Floor 5: the machine that runs tasks: who is alive, one attempt, and the supervisor of them all."""
