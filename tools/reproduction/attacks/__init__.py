"""Experiments about attacks."""
