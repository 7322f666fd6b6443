"""What pages cost: as many queries for very many rows as for a few, and no page of the console grows with them."""

import re
from collections.abc import Iterator

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from console.pages import tenants
from fleet import pacing
from kernel import clock
from quotas.amount import Amount, Kind
from quotas.services import set_group, set_quota
from serving.models import Deployment
from tenants.models import Tenant
from tests.build.controlplane import actor_for, make_tenant, make_user, owner_of
from tests.build.crowd import crowd

pytestmark = pytest.mark.django_db
#: Queries of a page, whatever is behind it. A new one needs a reason.
MOST = {
    "/t/{slug}/": 37,
    "/t/{slug}/models/": 26,
    "/t/{slug}/deployments/": 24,
    "/t/{slug}/deployments/{deployment}/": 32,
    "/t/{slug}/rollouts/": 22,
    "/t/{slug}/rollouts/experiments/": 22,
    "/t/{slug}/playground/": 24,
    "/t/{slug}/keys/": 22,
    "/t/{slug}/usage/": 30,
    "/t/{slug}/members/": 24,
    "/t/{slug}/audit/": 20,
    "/t/{slug}/settings/": 30,
    "/platform/": 28,
    "/platform/tenants/": 18,
    "/platform/quotas/": 20,
    "/platform/faults/": 22,
    "/platform/prices/": 24,
    "/platform/people/": 16,
    "/platform/audit/": 20,
}


@pytest.fixture(scope="module")
def sizes() -> tuple[tuple[str, dict[str, int]], ...]:
    return (
        ("few", {"deployments": 2, "replicas": 1, "keys": 3}),
        ("many", {"deployments": 60, "replicas": 6, "keys": 400}),
    )


def _queries(client: Client, path: str) -> int:
    client.get(path)  # what is kept for later (permissions, content types) is read once
    with CaptureQueriesContext(connection) as asked:
        answer = client.get(path)
    assert answer.status_code == 200, path
    return len(asked)


def test_queries_do_not_grow_with_what_there_is(sizes: tuple[tuple[str, dict[str, int]], ...]) -> None:
    client = Client()
    client.force_login(make_user(admin=True))
    found: dict[str, dict[str, int]] = {}
    tenants = {slug: make_tenant(slug) for slug, _numbers in sizes}  # pages of the platform list both each time
    for slug, numbers in sizes:
        crowd(tenants[slug], actor_for(owner_of(tenants[slug])), **numbers)
        deployment = Deployment._base_manager.filter(tenant=tenants[slug]).order_by("-id")[0]
        found[slug] = {path: _queries(client, path.format(slug=slug, deployment=deployment.id)) for path in MOST}
    wrong = {
        path: (few, many)
        for path, few in found["few"].items()
        if (many := found["many"][path]) > few or many > MOST[path]
    }
    assert not wrong


@pytest.mark.parametrize("path", ["/platform/", "/platform/tenants/", "/platform/quotas/"])
def test_queries_do_not_grow_with_tenants(path: str) -> None:
    admin, client = make_user(admin=True), Client()
    client.force_login(admin)
    set_group(actor=actor_for(admin), name="harbors", changes={Kind.REPLICAS: Amount.of(50)})

    def more(slug: str) -> None:
        made = make_tenant(slug)
        crowd(made, actor_for(owner_of(made)), deployments=2, replicas=1, keys=1)
        set_quota(actor=actor_for(admin), tenant=made, changes={Kind.REPLICAS: Amount.of(9)}, group="harbors")

    more("one")
    few = _queries(client, path)
    for slug in ("two", "three", "four"):
        more(slug)
    assert _queries(client, path) == few


@pytest.fixture(autouse=True)
def one_moment(db: None) -> Iterator[None]:
    """What a process counts every few seconds (the nodes, for their pace) it has counted, and does not count again."""
    with clock.frozen(clock.now()):
        pacing.current()
        yield


@pytest.fixture
def tenant() -> Tenant:
    made = make_tenant("harbor")
    crowd(made, actor_for(owner_of(made)), deployments=45, replicas=1, keys=120)
    return made


@pytest.mark.parametrize(("path", "mark"), [("keys", r"key-\d{5}"), ("deployments", r"crowd-\d+")])
def test_pages_follow_each_other_without_a_gap(tenant: Tenant, path: str, mark: str) -> None:
    client = Client()
    client.force_login(owner_of(tenant))
    seen: list[str] = []
    url = f"/t/harbor/{path}/"
    for _ in range(4):
        text = client.get(url).content.decode()
        table = text[text.index("<tbody>") : text.index("</tbody>")]
        seen += list(dict.fromkeys(re.findall(mark, table)))
        older = re.search(r'href="\?([^"]*after=[^"]+)"', text)
        if not older:
            break
        url = f"/t/harbor/{path}/?{older[1].replace('&amp;', '&')}"
    assert len(seen) == len(set(seen)) == (120 if path == "keys" else 45)
    back = re.search(r'href="\?([^"]*before=[^"]+)"', text)
    assert back
    assert client.get(f"/t/harbor/{path}/?{back[1]}").status_code == 200


def test_a_search_and_a_state_stay_over_pages(tenant: Tenant) -> None:
    client = Client()
    client.force_login(owner_of(tenant))
    page = client.get("/t/harbor/keys/?q=key&state=active").content.decode()
    assert re.search(r'href="\?q=key&amp;state=active&amp;after=[0-9a-f-]{36}"', page)
    assert "key-00007" in client.get("/t/harbor/keys/?q=0007").content.decode()
    assert "key-00007" not in client.get("/t/harbor/keys/?state=revoked").content.decode()


def test_tenants_follow_each_other_by_name_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "PER_PAGE", 2)
    client = Client()
    client.force_login(make_user(admin=True))
    for name in ("delta", "Alpha", "same", "beta", "same"):
        make_tenant(name=name)

    def look(query: str) -> tuple[list[str], dict[str, str]]:
        text = client.get(f"/platform/tenants/?{query}").content.decode()
        beside = dict(re.findall(r'href="\?((?:before|after)=[^"]+)">(?:<svg.*?</svg>)?(Previous|Next)', text))
        return re.findall(r'<a class="name"[^>]*>(\w+)<', text), {way: link for link, way in beside.items()}

    pages, beside = [], {"Next": ""}
    while "Next" in beside:
        names, beside = look(beside["Next"])
        pages.append(names)
    assert pages == [["Alpha", "beta"], ["delta", "same"], ["same"]]
    assert look(beside["Previous"])[0] == pages[1]
    assert look("after=00000000-0000-7000-8000-000000000000")[0] == pages[0]
