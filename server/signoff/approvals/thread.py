"""The thread of an approval, as people write and read it."""

from __future__ import annotations

from signoff.approvals.doors import find_approval, person_now
from signoff.approvals.notes import MAX_TEXT, NoteView, clean_text, note, notes_of
from signoff.people.audit import audit
from signoff.people.permissions import require
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from signoff.workflow.errors import FieldError, InvalidInput

__all__ = ["MAX_TEXT", "NoteView", "comment", "notes"]


def comment(tx: Tx, scope: Scope, approval: str, text: str, *, via: str) -> NoteView:
    """Write a comment, also on a question that is over. Raises NotFound, Refused (role), InvalidInput (the text)."""
    row = find_approval(tx, scope, approval)
    person = person_now(tx, scope)
    inner = Scope(scope.tenant_id, person)
    require(inner, "approval.comment")
    text = clean_text(text, "text")
    if not text:
        raise InvalidInput("A comment says something", [FieldError(("text",), "write something")], approval=approval)
    number = note(tx, row, "comment", scope=inner, via=via, text=text)
    audit(tx, inner, "approval.comment", row.public_id, via=via)
    return NoteView(number, tx.now, person.actor, person.name or person.actor, via, "comment", text, {})


def notes(tx: Tx, scope: Scope, approval: str) -> list[NoteView]:
    """The whole thread, oldest first. Needs approval.view; NotFound."""
    require(scope, "approval.view")
    return notes_of(tx, find_approval(tx, scope, approval).id)
