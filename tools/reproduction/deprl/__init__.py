"""Personalized decentralized learning with shared representations (DePRL)."""
