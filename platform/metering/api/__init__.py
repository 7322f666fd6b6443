"""REST of usage, and the door at which gateways deliver it."""
