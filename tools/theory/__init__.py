"""Closed forms of the papers, held against simulations: by module, as none needs another."""
