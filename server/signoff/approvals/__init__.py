"""Questions put to people: what an ask step opens, who may answer, and the one gate through which every answer goes."""

from __future__ import annotations

from signoff.approvals.questions import ApprovalQuestions
from signoff.approvals.settling import settle_all
from signoff.approvals.updates import Keeper
from signoff.engine import questions
from signoff.people.changes import on_people_changed
from signoff.replay import asked

questions.register(ApprovalQuestions())
asked.register(Keeper())
on_people_changed(settle_all)
