"""A round of FedAvg in other libraries, each in an environment of its own."""
