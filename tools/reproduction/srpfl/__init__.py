"""Straggler-resilient personalized federated learning (SRPFL)."""
