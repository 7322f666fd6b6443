"""The internal API of agents and gateways, and the admins' view of gateways."""
