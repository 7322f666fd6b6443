"""The contract between control plane, agents, gateways and engines.

Standard library and msgspec only: no I/O, no Django, no torch. Writers are strict; readers ignore unknown
fields within a major version, so a field may be added in a minor version but never change its meaning.
"""
