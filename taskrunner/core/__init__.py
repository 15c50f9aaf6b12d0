"""Floor 1: rows, rules, errors and the seams for time and chance. It imports nothing of ours."""
