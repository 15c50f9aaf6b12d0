"""Simulated hours: the real supervisors, stores and contexts on an event loop whose time, order and deaths are ours."""
