"""What an endpoint promises, and what keeps a caller on one variant: the dialog and the act."""

import uuid
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from console import problems
from console.forms import AmountField, plain, styled
from console.presenters.limits import STICKY
from console.web import Here, done, tenant_page
from kernel import errors
from serving import access, services
from serving.slo import BOUNDS
from tenants.roles import Permission


class EndpointForm(forms.Form):
    """Empty promises nothing."""

    ttft_p95_ms = AmountField(label=gettext_lazy("First token, P95"), required=False)
    itl_p95_ms = AmountField(label=gettext_lazy("Between tokens, P95"), required=False)
    e2e_p95_ms = AmountField(label=gettext_lazy("To the end, P95"), required=False)
    error_rate = AmountField(label=gettext_lazy("Failed requests, at most"), required=False)
    sticky = forms.ChoiceField(label=gettext_lazy("A caller stays on one variant by"), choices=list(STICKY.items()))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        styled(self)

    def slo(self) -> dict[str, float]:
        """The promises that were filled in; the rate of errors as a fraction."""
        data = {name: self.cleaned_data[name] for name in BOUNDS if self.cleaned_data[name] is not None}
        if "error_rate" in data:
            data["error_rate"] /= 100
        return data


@tenant_page(get=Permission.DEPLOY, post=Permission.DEPLOY)
def edit(request: HttpRequest, here: Here, deployment_id: uuid.UUID) -> HttpResponse:
    """The dialog, and the act."""
    found = access.access_deployment(here.actor, here.tenant, deployment_id)
    endpoint = found.endpoint
    initial = {name: plain(value) for name, value in endpoint.slo.items()}
    if "error_rate" in endpoint.slo:
        initial["error_rate"] = plain(endpoint.slo["error_rate"] * 100)
    form = EndpointForm(
        request.POST if request.method == "POST" else None, initial={**initial, "sticky": endpoint.sticky}
    )
    if request.method == "POST" and form.is_valid():
        try:
            services.change_endpoint(
                actor=here.actor,
                tenant=here.tenant,
                endpoint=endpoint,
                slo=form.slo(),
                sticky=form.cleaned_data["sticky"],
            )
        except errors.PlatformError as exc:
            field = str(exc.data.get("field", "")).removeprefix("slo.")
            form.add_error(field if field in form.fields else None, problems.describe(exc).text)
        else:
            back = reverse(
                "console:deployment-tab",
                kwargs={"slug": here.tenant.slug, "deployment_id": deployment_id, "tab": "access"},
            )
            return done(request, _("%(name)s is changed.") % {"name": endpoint.name}, back)
    context = {"form": form, "deployment": found}
    status = 422 if request.method == "POST" else 200
    return render(request, "console/pages/endpoint_form.html", context, status=status)
