"""Form fields and looks shared by the pages."""

import re
from decimal import Decimal
from typing import Any, Final

from django import forms
from django.utils.translation import gettext_lazy as _

_PLAIN = (forms.TextInput, forms.NumberInput, forms.EmailInput, forms.Select, forms.Textarea, forms.PasswordInput)
#: More digits than anything here counts; what they mean is for the bounds of the field to say.
_PLAIN_NUMBER: Final = re.compile(r"-?[0-9]{1,40}(?:\.[0-9]{1,40})?")
_BOUNDS: Final = {"min_value": _("At least %(limit_value)s."), "max_value": _("At most %(limit_value)s.")}


class _Plain(forms.Field):
    """Digits of ASCII, as REST takes them; Python's own numbers also take those of any script, powers and underscores.

    It is typed as text: of what looks like no number a browser's own number field shows and sends nothing, which here
    often means "no limit".
    """

    widget = forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off"})

    def to_python(self, value: Any) -> Any:
        text = "" if value is None else str(value).strip()
        if text and not _PLAIN_NUMBER.fullmatch(text):
            raise forms.ValidationError(self.error_messages["invalid"])
        return super().to_python(text)


class NumberField(_Plain, forms.IntegerField):
    """A whole number with messages in our voice."""

    default_error_messages = {"invalid": _("A whole number in plain digits, like 12."), **_BOUNDS}


class AmountField(_Plain, forms.FloatField):
    """A number that need not be whole."""

    default_error_messages = {"invalid": _("A number in plain digits, like 12 or 2.5."), **_BOUNDS}


class ExactField(_Plain, forms.DecimalField):
    """A number of which every decimal counts."""

    default_error_messages = {"invalid": _("A number in plain digits, like 12 or 2.5."), **_BOUNDS}


def plain(value: float) -> str:
    """A number as these fields take it: without powers of ten."""
    return format(Decimal(f"{value:.12g}"), "f")


def styled(form: forms.Form) -> None:
    """Give every plain field of ``form`` the look of a field, and say what is missing in our voice."""
    for field in form.fields.values():
        if isinstance(field.widget, _PLAIN):
            field.widget.attrs.setdefault("class", "input")
        field.error_messages.setdefault("required", str(_("This is needed.")))
        if field.error_messages.get("required") == forms.Field.default_error_messages["required"]:
            field.error_messages["required"] = _("This is needed.")
    for name in form.errors:  # read when every field has its messages: reading them checks the whole form
        if name in form.fields:
            form.fields[name].widget.attrs["aria-invalid"] = "true"


def first_errors(form: forms.Form) -> dict[str, Any]:
    """First error of each field, for toasts."""
    return {name: texts[0] for name, texts in form.errors.items()}
