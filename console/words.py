"""Texts that scripts show. They travel in the page as data, already in the visitor's language."""

from django.utils.translation import gettext as _


def for_scripts(section: str) -> dict[str, str]:
    """Key to text, for the scripts of a section of the sidebar; ``%(name)s`` is filled in by the script."""
    return _everywhere() | {"models": _upload, "playground": _chat}.get(section, dict)()


def _everywhere() -> dict[str, str]:
    return {
        "live": _("Live"),
        "connecting": _("Connecting"),
        "lost": _("Connection lost"),
        "paused": _("Paused"),
        "lost_note": _("Connection lost. What you see may be old. Trying again in %(seconds)s s."),
        "copied": _("Copied"),
        "copy_failed": _("The browser did not allow copying. Select the text and copy it."),
        "no_answer": _("The server did not answer"),
        "no_answer_text": _("Nothing was changed. Check the connection and try again."),
        "failed": _("The request failed"),
        "request_id": _("Request %(id)s"),
        "close": _("Close"),
        "no_match": _("Nothing matches."),
    }


def _upload() -> dict[str, str]:
    return {
        "up_hashing": _("Reading, %(percent)s %%"),
        "up_waiting": _("Waiting"),
        "up_sending": _("%(percent)s %%, %(speed)s/s"),
        "up_checking": _("Checking SHA-256"),
        "up_verified": _("Verified"),
        "up_paused": _("Paused"),
        "up_refused": _("Refused"),
        "up_total": _("%(sent)s of %(total)s"),
        "up_left": _("%(span)s left"),
        "up_pause": _("Pause"),
        "up_resume": _("Resume"),
        "up_done": _("All files are verified. The version is being checked."),
        "up_same": _("Continues an earlier upload: what was sent is not sent again."),
        "up_none": _("Choose files or a folder first."),
        "up_files": _("%(count)s files, %(size)s"),
        "up_missing": _("Choose also: %(paths)s"),
    }


def _chat() -> dict[str, str]:
    return {
        "chat_no_key": _("A key for the playground could not be made"),
        "chat_stopped": _("stopped"),
        "chat_streaming": _("streaming"),
        "chat_failed": _("The answer failed"),
        "chat_unreachable": _("The gateway cannot be reached at %(url)s."),
        "chat_cut": _("The stream ended before the answer was complete."),
        "chat_length": _("cut at the token limit"),
        "chat_per_second": _("tokens/s"),
        "chat_in_out": _("%(in)s in, %(out)s out"),
    }
