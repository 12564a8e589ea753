"""Tables, transactions, group commit, notices: everything that speaks to the database."""

from signoff.store.migrate import migrate
from signoff.store.store import AuthorSession, Committer, Notice, Person, Scope, Store, Tx

__all__ = ["AuthorSession", "Committer", "Notice", "Person", "Scope", "Store", "Tx", "migrate"]
