"""Real processes, killed and stopped at any moment, and the verdict on what they leave."""
