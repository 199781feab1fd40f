"""ASAP essay sets 7 and 8 with human grades of every trait (Hewlett Foundation, Kaggle 2012).

The early-token confidence paper (appendix A) works on these and does not say which grade of the two raters it takes.
Here: the third rater's where there is one, as the set's own resolved score does, or else the mean of the two, halves
rounded up. The texts of tasks and grades are ours, short, after the set's rubrics. Essays stand as they were given,
placeholders such as @PERSON1 included.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from metaprobe.records.errors import ImportFileError
from metaprobe.records.types import Item
from metaprobe.tasks.grading import chance, make_item, score
from metaprobe.tasks.task import Row, Task


@dataclass(frozen=True, slots=True)
class EssaySet:
    """Holds the students' task, and the meaning of the grades of each trait."""

    prompt: str
    low: int
    traits: dict[str, tuple[str, tuple[str, ...]]]
    """Name in the data -> the trait's name, and the meaning of each grade from `low` upwards."""


SETS = {
    7: EssaySet(
        "Write about patience: a story of a time when you or someone you know was patient, or your own story about it.",
        0,
        {
            "content_ideas": (
                "ideas",
                (
                    "The ideas miss the topic or are not developed.",
                    "The ideas hardly keep to the topic; few details, and general ones.",
                    "The ideas mostly keep to the topic; some details are specific, others general.",
                    "The ideas keep to the topic and are fully developed with specific, fitting details.",
                ),
            ),
            "organization": (
                "organization",
                (
                    "There is no visible order.",
                    "Ideas and events are only weakly connected.",
                    "Ideas and events come in a logical order.",
                    "Ideas and events come in a logical order and their connections are clear.",
                ),
            ),
            "style": (
                "style",
                (
                    "The language does not serve its purpose or readers.",
                    "Words and sentences vary little, which can get in the way of the purpose.",
                    "The language is adequate: fitting words and clear sentences.",
                    "The language is strong: compelling words and varied sentences that serve purpose and readers.",
                ),
            ),
            "conventions": (
                "conventions",
                (
                    "Grammar, spelling, capitals and punctuation are not under control.",
                    "Grammar, spelling, capitals and punctuation are right only in part.",
                    "Grammar, spelling, capitals and punctuation are adequate for the grade.",
                    "Grammar, spelling, capitals and punctuation are right throughout, for the grade.",
                ),
            ),
        },
    ),
    8: EssaySet(
        "Many people say that laughter matters between people. Tell a true story in which laughter played a part.",
        1,
        {
            "ideas_content": (
                "ideas and content",
                (
                    "No central idea or purpose; far too little to develop one.",
                    "The purpose must be guessed; little development, or details that clutter.",
                    "The main idea can be understood, but is broad or obvious; support is thin, general or off topic.",
                    "A clear main idea and purpose; support is there, if limited or general in places.",
                    "Clear, focused and interesting; the main idea stands out and has fitting details.",
                    "Exceptionally clear and focused; holds the reader, with rich, well-chosen details and insight.",
                ),
            ),
            "organization": (
                "organization",
                (
                    "Haphazard and disjointed; the reader stays confused.",
                    "No clear structure; beginning, body or ending is missing, or the reader must reread.",
                    "An attempt at structure, but inconsistent, skeletal or too rigid.",
                    "Clear and coherent, if formulaic or predictable.",
                    "Strong order and structure that move the reader through the text.",
                    "Compelling order and structure, smooth transitions, inviting beginning and satisfying end.",
                ),
            ),
            "voice": (
                "voice",
                (
                    "No involvement at all; flat and lifeless.",
                    "Little involvement or sense of readers; mostly flat or mechanical.",
                    "The writer shows at times, but the commitment comes and goes or the tone does not fit.",
                    "A voice is present and mostly fits, with some sense of readers.",
                    "A fitting voice with commitment and a strong sense of readers.",
                    "A fitting, deeply committed voice; expressive, engaging or sincere throughout.",
                ),
            ),
            "word_choice": (
                "word choice",
                (
                    "Too few words, or so many misused ones that the meaning is lost.",
                    "Words are monotonous or misused and get in the way of the message.",
                    "Words are plain and repeated; they give the message without variety or precision.",
                    "Words work and are mostly fitting, though some are general or overdone.",
                    "Broad, precise and natural words that make the message interesting.",
                    "Exceptionally rich, precise and fresh words, placed for effect.",
                ),
            ),
            "sentence_fluency": (
                "sentence fluency",
                (
                    "Sentences are so broken or rambling that it is hard to read.",
                    "Sentences are often choppy, rambling or awkward and must be reread.",
                    "More mechanical than fluent; some awkward sentences slow the reader.",
                    "Flows, with some variety; connections may be stiff in places.",
                    "An easy flow with varied, well-built sentences.",
                    "An exceptional flow and rhythm; varied, strong sentences that invite reading aloud.",
                ),
            ),
            "conventions": (
                "conventions",
                (
                    "Errors of every kind are so many that the text is hard to read.",
                    "Frequent serious errors impede reading; much editing is needed.",
                    "Limited control; errors begin to impede reading.",
                    "Control of common conventions; minor errors that do not impede reading.",
                    "Strong control; few and small errors.",
                    "Exceptionally strong control, even of what is difficult; hardly any error.",
                ),
            ),
        },
    ),
}


def items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """One item a trait of each essay; the dimension is the set ("set 7", "set 8"), the level the trait.

    Fields: `essay`, `essay_prompt`, `trait`, `rubric`, `low`, `high`. A group is an essay with all of its traits.
    """
    for row in rows:
        number = row.whole("essay_set", 7, 8)
        essays = SETS[number]
        raters = [row.part(f"rater{rater}_traits") for rater in (1, 2, 3)]
        if raters[0] is None or raters[1] is None:
            raise ImportFileError(f"{row.where}: expected the grades of two raters in rater1_traits and rater2_traits")
        for key, (trait, rubric) in essays.traits.items():
            high = essays.low + len(rubric) - 1
            first, second, *third = (rater.whole(key, essays.low, high) for rater in raters if rater is not None)
            yield make_item(
                f"{row.text('id')}/{key}",
                essay=row.text("essay"),
                essay_prompt=essays.prompt,
                trait=trait,
                rubric=rubric,
                low=essays.low,
                gold=third[0] if third else (first + second + 1) // 2,
                group=row.text("id"),
                dimension=f"set {number}",
            )


TASK = Task(
    name="asap",
    items=items,
    source="https://www.kaggle.com/c/asap-aes",
    licence="rules of the Kaggle competition; not an open licence",
    score=score,
    chance=chance,
    folder="asap_7_8",
    files={"train": "data"},
)
