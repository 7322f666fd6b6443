"""Three traps of MIGRATION_MODULES, of which ``makemigrations --check`` notices none.

An app that is missing from the map gets migrations inside its own folder; an app in the map without its sub-package
counts as unmigrated, and the check says "no changes"; the same app makes ``migrate`` crash, also without models.
"""

import importlib

import pytest
from django.apps import apps
from django.conf import settings

from tests.architecture import tree


def test_every_first_party_app_has_an_entry():
    assert {app: f"migrations.{app}" for app in settings.FIRST_PARTY_APPS} == settings.MIGRATION_MODULES


@pytest.mark.parametrize("app", tree.apps())
def test_every_entry_has_its_package(app):
    folder = tree.ROOT / "migrations" / app
    assert (folder / "__init__.py").is_file()
    assert importlib.import_module(f"migrations.{app}").__file__ == str(folder / "__init__.py")


def test_no_other_folder_is_named_migrations():
    found = [path for top in tree.CODE for path in (tree.ROOT / top).rglob("migrations")]
    assert [tree.shown(path) for path in found if not tree.IGNORED & set(path.parts)] == []


@pytest.mark.parametrize("app", tree.apps())
def test_an_app_with_models_has_a_migration_and_one_without_has_none(app):
    migrations = [path for path in (tree.ROOT / "migrations" / app).glob("*.py") if path.name != "__init__.py"]
    assert bool(migrations) == bool(list(apps.get_app_config(app).get_models()))


def test_migrations_import_no_code_of_ours():
    import ast

    ours = {*tree.apps(), "kernel", "runtime"}
    breaches = []
    for path in tree.python_files("migrations"):
        for node in ast.walk(tree.syntax(path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            breaches += [f"{tree.shown(path)}: {name}" for name in names if name.split(".")[0] in ours]
    # Django writes these three into migrations by itself: a default for ids, the manager of users, a validator.
    allowed = ("kernel.ids", "kernel.scope", "tenants.models", "kernel")
    assert [breach for breach in breaches if not breach.endswith(tuple(f": {name}" for name in allowed))] == []
