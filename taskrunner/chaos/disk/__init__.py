"""Disks that fail, and power that is cut: below SQLite, in one process."""
