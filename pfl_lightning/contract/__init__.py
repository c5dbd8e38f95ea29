from pfl_lightning.contract.check import Finding, check
from pfl_lightning.contract.subject import ContractError, Subject

__all__ = ["ContractError", "Finding", "Subject", "check"]
