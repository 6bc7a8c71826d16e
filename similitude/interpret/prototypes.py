"""Prototypes and features that can be looked at, since they have the shape of the input.

DataDomain itself stands with the networks that are made of it, in similitude.models.data_domain.
"""

from ..models.data_domain import DataDomain

__all__ = ["DataDomain"]
