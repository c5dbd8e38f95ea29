"""Device heterogeneity in federated learning: a superquantile approach (Delta-FL)."""
