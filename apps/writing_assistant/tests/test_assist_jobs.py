"""Jobs of the page and the texts that they are about: who waits is woken, what is deleted stops."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from assisted import VEINS, client_of, plain_words

from metaprobe_writing_assistant.page.jobs import HEARTBEAT_S, MAX_ENDED_JOBS, Job, Jobs
from metaprobe_writing_assistant.page.session_file import SessionFile
from metaprobe_writing_assistant.page.sessions import Sessions


def test_who_follows_a_job_hears_of_an_event_and_of_the_end_at_once() -> None:
    async def follow() -> list[Any]:
        job, heard = Job("one"), []

        async def listen() -> None:
            async for told in job.follow(heartbeat_s=3600):
                heard.append(told)  # noqa: PERF401  each as it comes

        listening = asyncio.ensure_future(listen())
        for number in range(3):
            await asyncio.sleep(0)
            job.tell(number=number)
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(heard) == number + 1
        job.end()
        await asyncio.wait_for(listening, 60)
        return heard

    assert asyncio.run(follow()) == [(number, {"number": number}) for number in range(3)]


def test_a_silence_is_told_as_nothing_and_a_late_listener_gets_what_it_has_not_seen() -> None:
    async def follow() -> list[Any]:
        job, heard = Job("one"), []
        job.tell(number=0)
        job.tell(number=1)
        async for told in job.follow(1, heartbeat_s=0.001):
            heard.append(told)
            if told is None:
                job.end()
        return heard

    assert asyncio.run(follow()) == [(1, {"number": 1}), None]
    assert 5 <= HEARTBEAT_S <= 25  # proxies close what is silent for half a minute or more


def test_jobs_that_ended_are_kept_for_late_pages_up_to_a_number_and_running_ones_always() -> None:
    async def work() -> tuple[Jobs, list[bool]]:
        jobs, held = Jobs(), asyncio.Event()

        async def at_once(job: Job) -> None:
            job.tell(done=True)

        async def waits(job: Job) -> None:
            await held.wait()

        jobs.begin("running", waits)
        for number in range(MAX_ENDED_JOBS + 3):
            job = jobs.begin(f"job {number}", at_once)
            assert job.task is not None
            await job.task
        jobs.begin("last", waits)
        found = [
            jobs.get(name) is not None for name in ("job 0", "job 2", "job 3", f"job {MAX_ENDED_JOBS + 2}", "running")
        ]
        states = [jobs.running("running"), await jobs.stop("running"), jobs.running("running")]
        states += [await jobs.stop("running"), await jobs.stop("nobody")]
        await jobs.stop_all()
        return jobs, [*found, *states, jobs.running("last")]

    _, found = asyncio.run(work())
    assert found == [False, False, True, True, True, True, True, False, False, False, False]


def test_a_message_keeps_the_text_that_it_was_asked_about(tmp_path: Path) -> None:
    with SessionFile(tmp_path / "s.sqlite") as file:
        sessions = Sessions(file)
        sessions.begin_turn("a", "Is it right?", "My first text.", "multi")
        sessions.begin_turn("a", "And now?", "My first text.", "multi")
        sessions.begin_turn("a", "And then?", "My second text.", "multi")
        kept = sessions.versions("a")
        assert [(one["words"], one["saved"]) for one in kept] == [(3, "before a message")] * 2
        texts = [sessions.version("a", one["number"]) for one in kept]
    assert texts == ["My first text.", "My second text."]


def test_a_text_that_is_deleted_while_it_is_answered_is_answered_no_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain_words(monkeypatch)
    stopped: list[tuple[str, bool]] = []
    stop = Jobs.stop

    async def told(jobs: Jobs, name: str) -> bool:
        stopped.append((name, await stop(jobs, name)))
        return stopped[-1][1]

    with client_of(tmp_path) as page:
        page.teacher.hold = lambda request: True
        session = page.begin(VEINS)
        page.ask("POST", f"/api/sessions/{session}/turns", {"message": "Is it right?"})
        monkeypatch.setattr(Jobs, "stop", told)
        page.ask("DELETE", f"/api/sessions/{session}")
        monkeypatch.setattr(Jobs, "stop", stop)
        page.teacher.hold = lambda request: False
    [(name, was_at_work)] = stopped
    assert session in name
    assert was_at_work
