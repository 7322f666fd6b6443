"""The translator between rows and ``runtime.wire``: the internal API of agents and gateways."""
