"""Machines and what they are made of: nodes with their agents, devices, partitions, gateways, join tokens."""
