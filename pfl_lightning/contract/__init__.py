from pfl_lightning.contract.findings import Finding, check
from pfl_lightning.contract.subject import ContractError, Subject

__all__ = ["ContractError", "Finding", "Subject", "check"]
