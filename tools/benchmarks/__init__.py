"""What ``tools/benchmark.py`` measures, and how it shows it."""
