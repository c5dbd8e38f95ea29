"""What ``tools/reproduce.py`` runs and checks, one package a paper."""
