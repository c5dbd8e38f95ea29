from pfl_lightning.client.engine import BackendName, Engine
from pfl_lightning.client.examples import Examples, Samples
from pfl_lightning.client.phase import Phase

__all__ = ["BackendName", "Engine", "Examples", "Phase", "Samples"]
