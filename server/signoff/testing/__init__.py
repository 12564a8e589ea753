"""The test kit: an engine in memory with a clock that a test moves, steps that it replaces, and people who answer.

    async with TestEngine(workflows=[fulfill_order]) as t:
        await t.add_person("ana@example.org", groups=["finance"])
        t.replace("shipping/create-label", value="L-1", errors=2)
        run = await t.start(fulfill_order, order_id="o-1")
        await t.approve(run, ShipAnswer(approved=True), as_user="ana")
        await t.advance(timedelta(hours=1))
        assert await t.result(run) == "fulfilled"

In pytest, `pytest_plugins = ["signoff.testing.plugin"]` gives the fixture `signoff_engine`.
"""

from __future__ import annotations

from signoff.testing.engine import CannotCome, TestEngine
from signoff.testing.people import Answer, Race
from signoff.testing.replacements import Replacements

__all__ = ["Answer", "CannotCome", "Race", "Replacements", "TestEngine"]
