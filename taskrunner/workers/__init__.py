"""Ready-made task types, written against taskrunner's public names only."""
