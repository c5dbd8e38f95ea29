"""Sparse personalized federated learning (FedMac)."""
