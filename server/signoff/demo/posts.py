"""A content review with more outcomes than yes and no; a post that was sent back comes again, written anew."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Literal

from pydantic import AwareDatetime, BaseModel, Field

from signoff import Step, action, ask, group, option, workflow


class PublishNow(BaseModel):
    outcome: Literal["publish"] = "publish"


class PublishLater(BaseModel):
    outcome: Literal["schedule"] = "schedule"
    at: AwareDatetime = Field(title="When")


class Rework(BaseModel):
    outcome: Literal["rework"] = "rework"
    what: str = Field(title="What should change", min_length=3, json_schema_extra={"long": True})
    tone: Literal["friendlier", "shorter", "plainer"] | None = Field(default=None, title="Tone")


class Drop(BaseModel):
    outcome: Literal["drop"] = "drop"


review = ask("posts/review", PublishNow | PublishLater | Rework | Drop)


@action(name="posts/write")
async def write_post(topic: str, wishes: list[str]) -> str:
    """The writer of the example."""
    await asyncio.sleep(0.3)
    text = f"Our {topic} is back, better than ever. **Order by Friday** and it ships at once."
    return text + "".join(f"\n\n*Changed as you asked: {wish}.*" for wish in wishes)


@workflow("posts/publish")
async def publish_post(step: Step, topic: str = "spring catalogue") -> str:
    """Writes a post and publishes it when an editor says so."""
    wishes: list[str] = []
    while True:
        text = await step.run_action(write_post, topic, wishes)
        verdict = await step.ask(
            review,
            title=f"Publish the post about our {topic}?",
            body=text,
            facts={"draft": len(wishes) + 1, "readers": 12_480, "words": len(text.split())},
            to=group("editors"),
            options=[
                option("publish", "Publish now", value=PublishNow(), style="primary",
                       consequence="12,480 people get an e-mail."),
                option("schedule", "Publish later", form=PublishLater, consequence="Goes out at that time."),
                option("rework", "Send it back", form=Rework, consequence="Comes again, written anew."),
                option("drop", "Drop it", value=Drop(), rejects=True, style="danger",
                       consequence="Nobody ever sees it."),
            ],
            due=timedelta(days=1),
        )  # fmt: skip
        match verdict:
            case PublishNow():
                return "published"
            case PublishLater():
                await step.sleep_until(verdict.at)
                return "published"
            case Rework():
                wishes.append(verdict.what)
            case Drop():
                return "dropped"
