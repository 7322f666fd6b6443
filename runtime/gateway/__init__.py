"""The front door of inference: authenticates, limits, routes, streams and meters; no Django, no torch, no database.

It serves from its last route table, so that neither the control plane nor its database is on the path of a request.
"""
