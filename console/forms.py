"""Form fields and looks shared by the pages."""

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

_PLAIN = (forms.TextInput, forms.NumberInput, forms.EmailInput, forms.Select, forms.Textarea, forms.PasswordInput)


class NumberField(forms.IntegerField):
    """A whole number with messages in our voice."""

    default_error_messages = {
        "invalid": _("A whole number."),
        "min_value": _("At least %(limit_value)s."),
        "max_value": _("At most %(limit_value)s."),
    }


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
