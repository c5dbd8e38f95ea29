"""Figures of one run, or of its data."""
