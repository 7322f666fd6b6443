"""Limits and budgets of keys and tenants: taken at an upper bound before work starts, settled on every exit."""

from runtime.gateway.limits.limiter import Limiter, Options
from runtime.gateway.limits.terms import Demand, Lease

__all__ = ["Demand", "Lease", "Limiter", "Options"]
