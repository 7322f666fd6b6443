"""Errors of this room."""

from kernel import errors


class EndpointNameTaken(errors.Conflict):
    code = "endpoint_name_taken"
    title = "Name is taken"


class EndpointInUse(errors.Conflict):
    code = "endpoint_in_use"
    title = "Endpoint still has deployments"


class DeploymentDeleting(errors.Conflict):
    code = "deployment_deleting"
    title = "Deployment is being deleted"


class GrantExists(errors.Conflict):
    code = "grant_exists"
    title = "Granted already"
