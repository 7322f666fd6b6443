"""Both sides replay the golden files: what was sent is read, and what is written has not changed."""

import json

import msgspec
import pytest

from runtime.wire import codec, version
from tests.contract import golden_files, samples

MESSAGES = sorted(samples.messages())
CASES = [(name, variant) for name in MESSAGES for variant in golden_files.VARIANTS]


def golden(name: str, variant: str) -> bytes:
    path = golden_files.path_of(name, variant)
    assert path.exists(), f"{path.name} is missing: run python -m tests.contract.golden_files"
    return path.read_bytes().rstrip(b"\n")


def test_every_message_has_a_sample_and_golden_files():
    assert set(samples.FULL) == set(MESSAGES)
    on_disk = {path.name for path in golden_files.FOLDER.glob("*.json")}
    assert on_disk == {golden_files.path_of(name, variant).name for name, variant in CASES}


def test_there_is_a_folder_for_the_protocol_spoken_now():
    assert golden_files.FOLDER.name == f"v{version.MAJOR}"


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_a_golden_message_is_read_and_written_again_byte_for_byte(name, variant):
    kind = samples.messages()[name]
    stored = golden(name, variant)
    message = codec.decode(stored, kind)
    assert message == (samples.FULL[name] if variant == "full" else samples.smallest(name))
    assert codec.encode(message) == stored


@pytest.mark.parametrize("name", MESSAGES)
def test_a_full_sample_sets_every_field_to_something_else_than_its_default(name):
    sample = samples.FULL[name]
    same_as_default = [
        field.name
        for field in msgspec.structs.fields(sample)
        if not field.required
        and field.name != "protocol"
        and getattr(sample, field.name)
        == (field.default_factory() if field.default is msgspec.NODEFAULT else field.default)
    ]
    assert same_as_default in ([], ["engine"], ["major"])  # one engine, one major version so far


@pytest.mark.parametrize("name", MESSAGES)
def test_unknown_fields_are_ignored_at_every_depth(name):
    kind = samples.messages()[name]
    stored = json.loads(golden(name, "full"))
    assert codec.decode(json.dumps(with_more(stored)), kind) == samples.FULL[name]


def with_more(value):
    if isinstance(value, dict):
        return {"from_a_later_version": {"x": [1]}, **{key: with_more(item) for key, item in value.items()}}
    if isinstance(value, list):
        return [with_more(item) for item in value]
    return value


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_without_a_required_field_is_malformed(name):
    kind = samples.messages()[name]
    stored = json.loads(golden(name, "full"))
    for field in msgspec.structs.fields(kind):
        if field.required:
            without = {key: value for key, value in stored.items() if key != field.encode_name}
            with pytest.raises(codec.errors.MalformedMessage, match=field.encode_name):
                codec.decode(json.dumps(without), kind)


@pytest.mark.parametrize("name", MESSAGES)
def test_plain_form_and_back_is_the_same(name):
    sample = samples.FULL[name]
    assert codec.from_plain(json.loads(json.dumps(codec.to_plain(sample))), type(sample)) == sample


def test_the_generator_leaves_existing_files_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(golden_files, "FOLDER", tmp_path)
    assert len(golden_files.write(set())) == len(CASES)
    old = golden_files.path_of("joining.Hint", "full")
    old.write_bytes(b'{"topic":"old","generation":1}\n')
    assert golden_files.write(set()) == []
    assert old.read_bytes().startswith(b'{"topic":"old"')
    assert golden_files.write({"joining.Hint"}) == ["joining.Hint.full.json", "joining.Hint.smallest.json"]
    assert old.read_bytes().startswith(b'{"topic":"routes"')
