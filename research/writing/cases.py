"""The four writing cases of MetaCrit's appendix K, retold: topics, stages and order are the paper's, the texts ours."""

from typing import NamedTuple


class Step(NamedTuple):
    """One input of a case."""

    stage: str
    reasoning: str
    message: str
    draft: str = ""


class Case(NamedTuple):
    """A learner with a topic, and what he or she asks in order."""

    name: str
    introduction: str
    steps: tuple[Step, ...]


MAYA = (
    "Hello, I am Maya, 16 years old, from Vietnam. I have learned English for two years. I want to write better "
    "argumentative essays about science and society. Please guide me step by step, in simple words."
)
JON = (
    "Hi, my name is Jon. I am 17 and come from Poland. My English is intermediate. I would like to write about my own "
    "experience in a lively way, and to learn new words."
)
LIN = (
    "I am Lin from China, 16, second year of English. I want to improve academic writing in natural science. I like "
    "short "
    "explanations and examples."
)

SHARING_PARAGRAPH = (
    "When results are open, progress is faster. The human genome was published for everyone, and laboratories in many "
    "countries could use it to look for new medicines. A company that hides its data makes others repeat the same work."
)
SHARING_REBUTTAL = (
    "Some people say that patents pay for research. But states can pay as well: a large part of the money for new "
    "vaccines came from taxes, so the public should own what it paid for."
)
SHARING = (
    "Science changes how we live, so who should own its results? I think that researchers everywhere should be able to "
    f"read every discovery. {SHARING_PARAGRAPH} {SHARING_REBUTTAL} Of course there are dangers, for instance a recipe "
    f"for a "
    "poison. Such cases are rare, and rules about them can be made by all countries together."
)
SHARING_END = (
    "To sum up, open science is quicker and more fair. Patents bring money, but public money can take their place. The "
    "great problems of our time need people who work together and not secrets."
)

FILM_FIRST = (
    "My favorite movie is The Lion King because it tell about family. A young lion must be king. His father dies and "
    "he "
    "run away. At the end he comes back."
)
FILM_SECOND = (
    "The Lion King, an animated film that I saw as a child, taught me what responsibility means. After his father is "
    "killed, Simba hides far from home, until he understands that others depend on him. His way back shows how heavy, "
    "and how precious, a duty can be."
)
FILM_DRAFT = (
    f"{FILM_SECOND} One scene I cannot forget: Simba looks into the water and sees his father in his own face. I was "
    f"14 "
    "then and had failed an important exam. I had told nobody. After the film I showed the paper to my parents, and we "
    "made a plan. Since then I help younger pupils with mathematics, because somebody helped me."
)
FILM_FINAL = (
    "Running Away and Coming Back\n\nA song in The Lion King says that one should not worry. The film itself says the "
    "opposite: worries that we run from will wait for us. When Simba's father dies, he flees instead of becoming king. "
    "I did the same when I failed an exam and hid it.\n\nLater Simba learns that a past can hurt and still teach. I "
    "joined a study group and my marks became better. His return saves all the animals of his land, which shows how "
    "much one person can do. This is why I teach younger pupils on Saturdays.\n\nThe story is simple, and real life is "
    "not. But it changed how I look at problems: I do not run now, I begin."
)

VEINS_FIRST = (
    "Veins are blue because the blood inside them has no oxygen and is blue. In the lungs the blood gets oxygen and "
    "becomes red. We can see the blue colour through the skin."
)
VEINS_SECOND = (
    "Blood without much oxygen is dark red. Veins near the skin look blue because they lie close under the surface. "
    "The "
    "way in which light is scattered has something to do with it as well."
)
VEINS_FINAL = (
    "Veins look blue, but blood never is. With oxygen it is bright red, and with less oxygen it is dark red, as anyone "
    "can see who has given blood.\n\nThe blue is made by light. Red light goes deep into the skin, and the blood in a "
    "vein swallows much of it. Blue light does not go so deep, and more of it comes back to our eyes. So the skin "
    "above a "
    "vein sends back less red than the skin around it, and the brain calls this blue.\n\nPictures in school books, in "
    "which veins are blue, help the mistake to live on. It is physics and not biology that explains the colour."
)

EVALUATE = "Please evaluate language, content, whether it sounds like me, grammar, and the feelings it wakes."

CASES = (
    Case(
        "sharing discoveries",
        MAYA,
        (
            Step(
                "pre",
                "yes",
                "I must write an argumentative essay: should all scientific discoveries be shared with all "
                "scientists, or "
                "may states and companies keep them secret? I do not know how to begin. Can I have background and "
                "important words?",
            ),
            Step(
                "during",
                "yes",
                "Here are my position and outline. Is the argument clear, and what can be better?\nPosition: "
                "discoveries "
                "should be open, because open results make progress faster and keep researchers honest.\nOutline: 1 "
                "introduction, 2 faster progress, 3 no secret misuse, 4 objection: patents pay for research, 5 answer: "
                "public money, 6 conclusion.",
            ),
            Step("during", "yes", "I have written my first body paragraph. Does the example work?", SHARING_PARAGRAPH),
            Step("during", "yes", "I added a part about patents. Is my answer convincing?", SHARING_REBUTTAL),
            Step(
                "post", "no", "This is the full draft. Please check grammar and make the transitions better.", SHARING
            ),
            Step(
                "post",
                "yes",
                "I changed it after your advice. Does the conclusion sum up my arguments well?",
                f"{SHARING}\n\n{SHARING_END}",
            ),
        ),
    ),
    Case(
        "a film that changed me",
        JON,
        (
            Step(
                "pre",
                "no",
                "I want to write about the book or film that influenced me most, and why. I cannot find a beginning. "
                "Which angles could I take?",
            ),
            Step(
                "pre",
                "no",
                "I chose The Lion King. I need words about responsibility and family, each with a sentence.",
            ),
            Step("during", "no", "This is my first paragraph. Please help me with content and language.", FILM_FIRST),
            Step("during", "no", "I wrote it again. Can you look at it once more?", FILM_SECOND),
            Step("post", "yes", "Here is the whole draft. Is it clear, and do the parts hold together?", FILM_DRAFT),
            Step("post", "yes", f"This is my final essay. {EVALUATE}", FILM_FINAL),
        ),
    ),
    Case(
        "the colour of veins",
        LIN,
        (
            Step(
                "pre",
                "yes",
                "My essay has to explain why veins look blue. I believe that blood without oxygen is blue. How should "
                "I "
                "structure it?",
            ),
            Step(
                "pre",
                "no",
                "Which technical terms do I need for veins and the colour of blood? Is 'blue blood' a good term? "
                "Please "
                "give example sentences.",
            ),
            Step("during", "yes", "Here is my first draft. Is it correct?", VEINS_FIRST),
            Step(
                "during",
                "yes",
                "I corrected the colour of blood. But veins close to the skin are bluer, I still think. Is that true?",
                VEINS_SECOND,
            ),
            Step("post", "yes", f"My final essay is ready. {EVALUATE}", VEINS_FINAL),
        ),
    ),
    Case(
        "the colour of veins, all in one message",
        LIN,
        (
            Step(
                "pre",
                "yes",
                "I have to write about why veins are blue. It is because blood without oxygen is blue, I think. How "
                "do I "
                "structure such an essay?",
            ),
            Step(
                "pre",
                "no",
                "I need terms about veins and the colour of blood. 'Blood without oxygen' and 'blue veins' are "
                "important, right? Give me key words with example sentences.",
            ),
            Step("during", "yes", f"Draft: {VEINS_FIRST} Is this correct?"),
            Step("during", "yes", f"Revised draft: {VEINS_SECOND} Is that true?"),
            Step("post", "yes", f"Final essay: {VEINS_FINAL}\n\n{EVALUATE}"),
        ),
    ),
)
"""In the fourth case the editor stays empty: text and request come in one message, for the writing extractor."""
