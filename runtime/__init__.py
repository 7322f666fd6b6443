"""The data plane: node agent, gateway, engine, client. Nothing below imports Django."""
