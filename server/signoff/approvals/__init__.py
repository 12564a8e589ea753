"""Questions put to people: what an ask step opens, who may answer, and the one gate through which every answer goes."""

from __future__ import annotations

from signoff.approvals.questions import ApprovalQuestions
from signoff.engine import questions

questions.register(ApprovalQuestions())
