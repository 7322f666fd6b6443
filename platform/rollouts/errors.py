"""What can be wrong with a rollout."""

from kernel import errors


class NoBaseline(errors.Conflict):
    """The endpoint does not have exactly one deployment that gets traffic."""

    code = "no_single_baseline"


class EndpointBusy(errors.Conflict):
    """A rollout or an experiment owns the endpoint's weights already."""

    code = "endpoint_busy"


class GapNotAccepted(errors.InvalidInput):
    """The plan has a gap in service that was not accepted in so many words; ``data["accept"]`` holds them."""

    code = "gap_not_accepted"


class NowhereToRun(errors.Conflict):
    """The baseline would end for a candidate that no device here could run."""

    code = "nowhere_to_run"


class SideGone(errors.Conflict):
    """The baseline or the candidate was deleted."""

    code = "deployment_gone"
