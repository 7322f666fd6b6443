"""Sizes, forbidden words and forbidden shortcuts, read from the source."""

import ast
import re

import pytest

from tests.architecture import tree

MODULE_LINES = 450
FUNCTION_LINES = 70
#: Words that mean "later" or "never".
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b")
#: Ways in which reading a file can run code.
PICKLES = frozenset({"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"})
#: Who may write a state field: the mover itself, in a row's own creation, and the data plane's own state machines.
MOVER = "platform/kernel/machine.py"


def functions(path):
    for node in ast.walk(tree.syntax(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_modules_stay_small():
    sizes = {tree.shown(path): len(path.read_text(encoding="utf-8").splitlines()) for path in tree.python_files()}
    assert {name: lines for name, lines in sizes.items() if lines > MODULE_LINES} == {}


def test_functions_stay_small():
    long = {
        f"{tree.shown(path)}:{node.lineno} {node.name}": node.end_lineno - node.lineno + 1
        for path in tree.python_files()
        for node in functions(path)
        if node.end_lineno - node.lineno + 1 > FUNCTION_LINES
    }
    assert long == {}


def test_nothing_is_left_for_later():
    found = [
        f"{tree.shown(path)}:{number}: {line.strip()}"
        for path in tree.python_files(*tree.CODE, "tests")
        if path != tree.ROOT / "tests/architecture/test_code_shape.py"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert found == []


def test_nothing_imports_a_pickle():
    found = []
    for path in tree.python_files():
        for node in ast.walk(tree.syntax(path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            found += [f"{tree.shown(path)}:{node.lineno}" for name in names if name.split(".")[0] in PICKLES]
    assert found == []


def assigned_states(path):
    """Lines on which an attribute ``state`` is assigned, or an update() writes one, outside the mover."""
    for node in ast.walk(tree.syntax(path)):
        targets = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            for part in parts:
                if isinstance(part, ast.Attribute) and part.attr == "state" and not _of_self(part):
                    yield node.lineno
        if _is_call_of(node, "update") and any(keyword.arg == "state" for keyword in node.keywords):
            yield node.lineno


def _is_call_of(node, name):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name


def _of_self(node):
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def test_state_moves_only_through_the_mover():
    found = [
        f"{tree.shown(path)}:{line}"
        for path in tree.python_files("platform", "tenants", "console")
        if tree.shown(path) != MOVER
        for line in assigned_states(path)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("row.state = 1", 1),
        ("row.state, row.x = 1, 2", 1),
        ("Row.objects.filter(id=1).update(state='x')", 1),
        ("Row.objects.create(state='x')", 0),
        ("self.state = 1", 0),
        ("row.status = 1", 0),
    ],
)
def test_the_check_for_state_sees_what_it_should(tmp_path, text, want):
    path = tmp_path / "sample.py"
    path.write_text(text)
    assert len(list(assigned_states(path))) == want


def test_broad_excepts_say_why():
    """``except Exception`` is for boundaries that record and recover; the line says which one it is."""
    silent = []
    for path in tree.python_files():
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in ast.walk(tree.syntax(path)):
            if not isinstance(node, ast.ExceptHandler):
                continue
            broad = node.type is None or (
                isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
            )
            ends_in_raise = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            nearby = lines[node.lineno - 1 : node.lineno + 1]
            if broad and not ends_in_raise and not any("#" in line for line in nearby):
                silent.append(f"{tree.shown(path)}:{node.lineno}")
    assert silent == []


def locks_hard(node):
    """True for ``select_for_update`` as Postgres' FOR UPDATE, for which foreign keys of others wait."""
    return _is_call_of(node, "select_for_update") and not any(word.arg == "no_key" for word in node.keywords)


def deletes(function):
    calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
    names = (getattr(node.func, "attr", getattr(node.func, "id", "")) for node in calls)
    return any(name == "delete" or name.startswith("_delete") for name in names)


def test_only_rows_about_to_be_deleted_are_locked_for_update():
    """Foreign keys are checked at a commit that holds counters already: waiting there closes circles."""
    found = [
        f"{tree.shown(path)}:{node.lineno} {node.name}"
        for path in tree.python_files("platform", "tenants", "console")
        for node in functions(path)
        if any(locks_hard(inner) for inner in ast.walk(node)) and not deletes(node)
    ]
    assert found == []


def test_only_one_place_binds_tcp_ports():
    """There the protocol is named, without which small writes wait 40 ms: see runtime/base/listening.py."""
    found = [
        f"{tree.shown(path)}:{node.lineno}"
        for path in tree.python_files()
        if tree.shown(path)
        not in ("runtime/base/listening.py", "runtime/embedded/checks.py")  # which only tries a port
        for node in ast.walk(tree.syntax(path))
        if _is_call_of(node, "create_server")
        or (_is_call_of(node, "bind") and ast.unparse(node.func.value) != "listening")
    ]
    assert found == []
