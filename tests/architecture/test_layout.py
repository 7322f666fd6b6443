"""Where things lie, and that nothing hides something else."""

import importlib.metadata
import sys
import tomllib

from django.conf import settings

from runtime.base.version import VERSION
from tests.architecture import tree

TOP_FOLDERS = {"platform", "console", "runtime", "tenants", "migrations", "tests", "deploy"}


def test_platform_is_a_source_root_and_never_a_package():
    # The file is what matters: pytest has imported the standard library's platform already and would not notice.
    assert not (tree.PLATFORM / "__init__.py").exists()
    assert [path.name for path in tree.PLATFORM.glob("*.py")] == []


def test_the_standard_librarys_platform_is_the_one_imported():
    import platform

    assert platform.python_version()


def test_the_top_level_has_only_the_agreed_folders():
    folders = {
        path.name
        for path in tree.ROOT.iterdir()
        if path.is_dir() and not path.name.startswith(".") and path.name not in tree.IGNORED | {"shared"}
    }
    assert folders <= TOP_FOLDERS


def test_app_names_hide_no_module_of_python_and_of_no_installed_package():
    names = {*tree.apps(), "runtime", "migrations", "kernel"}
    assert names & set(sys.stdlib_module_names) == set()
    owners = importlib.metadata.packages_distributions()
    foreign = {name: [owner for owner in owners.get(name, []) if owner != "millpond"] for name in names}
    assert {name: found for name, found in foreign.items() if found} == {}


def test_every_first_party_app_is_in_the_one_list_and_installed():
    assert sorted(settings.FIRST_PARTY_APPS) == tree.apps()
    assert set(settings.FIRST_PARTY_APPS) <= set(settings.INSTALLED_APPS)


def test_every_room_has_a_readme():
    assert [tree.shown(room) for room in tree.rooms() if not (room / "README.md").exists()] == []


def test_every_control_plane_package_is_a_root_package_of_the_import_contracts():
    known = set(tree.settings()["tool"]["importlinter"]["root_packages"])
    packages = {path.parent.name for path in tree.PLATFORM.glob("*/__init__.py")}
    assert packages | {"tenants", "console", "runtime"} == known


def test_there_is_one_version():
    assert tomllib.loads((tree.ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION
