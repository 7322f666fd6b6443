"""Names that people read back."""

import pytest

from kernel import errors, texts


@pytest.mark.parametrize("name", ["prod", "Ops team (2)", "生产环境", "clé d’été", "", "👩‍🔬 lab"])
def test_a_name_stays_as_it_is(name):
    assert texts.readable(f"  {name} ") == name


@pytest.mark.parametrize(
    "name", ["a\nb", "\u202eevil", "\u200b", "a\x00b", "tab\there", "\ufeffx", "x\u2066y", "\ud83d"]
)
def test_what_is_not_seen_or_turns_a_line_around_is_no_name(name):
    with pytest.raises(errors.InvalidInput) as refused:
        texts.readable(name)
    assert refused.value.data == {"field": "name"}
