from pfl_lightning.contract.check import Finding, check_method
from pfl_lightning.contract.subject import ContractError, Subject

__all__ = ["ContractError", "Finding", "Subject", "check_method"]
