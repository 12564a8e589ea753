"""What can go wrong with the database, each with what to do about it."""

from __future__ import annotations

import sqlite3

import psycopg
import sqlalchemy.exc as sa_exc

from signoff.workflow.errors import SignoffError


class StoreError(SignoffError):
    """Base. `transient` errors left nothing behind, and the same call may well succeed a moment later.

    `passes`: whatever was to be written is not at fault, so no run and no attempt fails for it, however long it takes.
    """

    code = "database"
    status = 503
    transient = False
    passes = False


class UnsupportedDatabase(StoreError):
    code = "database_unsupported"
    status = 400


class DatabaseUnavailable(StoreError):
    """No connection, or it was lost before the commit was asked for."""

    code = "database_unavailable"
    transient = passes = True


class CommitUnknown(StoreError):
    """The connection was lost during the commit: the transaction happened as a whole or not at all."""

    code = "commit_unknown"
    passes = True


class TransactionConflict(StoreError):
    """Serialization failure or deadlock; rolled back."""

    code = "transaction_conflict"
    transient = passes = True


class DatabaseLocked(StoreError):
    """Another process held the SQLite file's write lock for too long."""

    code = "database_locked"
    transient = passes = True


class DiskFull(StoreError):
    """Nothing was written. It may do as soon as somebody frees space, and smaller things may do now."""

    code = "disk_full"
    status = 507
    passes = True


class NotWritable(StoreError):
    code = "database_not_writable"


class NotADatabase(StoreError):
    code = "not_a_database"


class SchemaMissing(StoreError):
    """The tables are not there, or older than this release needs."""

    code = "schema_missing"


class SchemaTooNew(StoreError):
    """The database was migrated by a newer release."""

    code = "schema_too_new"


class ReadOnlyTransaction(StoreError):
    """A write inside a query."""

    code = "read_only"
    status = 400


class TransactionOwned(StoreError):
    """commit, rollback or close on a session whose transaction belongs to Signoff."""

    code = "transaction_owned"
    status = 400


class WriteInsideMutation(StoreError):
    """A call that wants a transaction of its own, made while a mutation holds one."""

    code = "write_inside_mutation"
    status = 400


class StoreClosed(StoreError):
    code = "store_closed"


class WorkerRefused(StoreError):
    """Another process already runs the worker of this SQLite file."""

    code = "worker_refused"
    status = 409


_SQLITE_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_SQLITE_NOT_A_DATABASE = {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}


def may_stand(error: BaseException) -> bool:
    """Whether a transaction may be committed although its commit raised this: the connection broke, nobody refused."""
    state = getattr(getattr(error, "orig", error), "sqlstate", None)
    return state is None or state.startswith(("08", "57P"))


def translate(error: BaseException, where: str = "the database") -> StoreError | None:
    """The typed error for a driver's or SQLAlchemy's, or None when it is none of the known troubles of a database.

    Constraint violations are not: they belong to whoever wrote the statement.
    """
    if isinstance(error, StoreError):
        return error
    if isinstance(error, sa_exc.TimeoutError):  # of the pool
        return DatabaseUnavailable(f"no connection to {where} became free in time; try again")
    original = error.orig if isinstance(error, sa_exc.DBAPIError) else error
    if isinstance(original, sqlite3.Error):
        return _translate_sqlite(original, where)
    if isinstance(original, psycopg.Error):
        return _translate_postgres(original, where)
    return None


def _translate_sqlite(error: sqlite3.Error, where: str) -> StoreError | None:
    # aiosqlite and sqlite3 both keep the result code; the low byte is the primary one
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _SQLITE_LOCKED:
        return DatabaseLocked(
            f"another process has kept {where} locked for writing; end its transaction (a database browser, "
            f"a backup, a script?) and try again"
        )
    if code == sqlite3.SQLITE_FULL:
        return DiskFull(f"the disk of {where} is full, nothing was written; free some space and try again")
    if code == sqlite3.SQLITE_READONLY:
        return NotWritable(f"{where} cannot be written; give this user write access to the file and to its folder")
    if code == sqlite3.SQLITE_CANTOPEN:
        return NotWritable(
            f"{where} cannot be opened; make sure that its folder exists and that this user may write to it"
        )
    if code == sqlite3.SQLITE_IOERR:
        return DatabaseUnavailable(f"reading or writing {where} failed ({error}); check its disk")
    if code in _SQLITE_NOT_A_DATABASE:
        return NotADatabase(f"{where} is no intact SQLite database ({error}); name another file or restore a backup")
    return None


def _translate_postgres(error: psycopg.Error, where: str) -> StoreError | None:
    state = error.sqlstate or ""
    if state in ("40001", "40P01"):
        return TransactionConflict(f"concurrent transactions in {where} conflicted ({error}); try again")
    if state == "53100":
        return DiskFull(f"the disk of {where} is full, nothing was written; free some space and try again")
    if state == "25006":
        return NotWritable(f"{where} takes no writes now (read-only transaction or standby); connect to the primary")
    if state == "3D000":
        return DatabaseUnavailable(f"{where} does not exist; create it (createdb) or correct the URL")
    if state.startswith("28"):
        return DatabaseUnavailable(f"{where} refused the sign-in ({error}); correct user and password in the URL")
    if state.startswith(("08", "57P", "53")) or (not state and isinstance(error, psycopg.OperationalError)):
        return DatabaseUnavailable(f"there is no connection to {where} ({str(error).strip()}); is the server running?")
    if not state and isinstance(error, psycopg.InterfaceError):
        return DatabaseUnavailable(f"the connection to {where} is closed")
    return None
