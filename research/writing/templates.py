"""Templates of the labelled turns: what learners ask at each stage, and whether it needs several steps of reasoning.

How the labels were set, by the person who wrote the templates:

- `pre`: nothing is written, and the learner wants a topic, background, ideas, words or structures to begin with.
- `during`: a part of a text exists and more is to come: a thesis, an outline, a paragraph, a doubt on the way.
- `post`: the text is called finished, and is to be judged as a whole, looked back on, or polished.
- `none`: none of these: a greeting, thanks, a question about the program, a request that is not about writing.
- reasoning `yes`: a good answer weighs claims, reasons or causes, plans an argument, or judges a whole text.
- reasoning `no`: a good answer names a word, a form, a rule or a list, or is polite.

`{topic}` and `{side}` are filled in. A turn's editor is empty, or holds a short or a long text, as the template says;
where it says several, the fills take turns, so that the length of the text does not give the stage away.
"""

from dataclasses import dataclass

EMPTY, SHORT, LONG = "empty", "short", "long"


@dataclass(frozen=True, slots=True)
class Template:
    """One way of asking; all turns made of it stay in one split."""

    name: str
    stage: str
    reasoning: str
    message: str
    drafts: tuple[str, ...]


CELLS: dict[tuple[str, str], tuple[tuple[str, ...], tuple[str, ...]]] = {
    ("pre", "no"): (
        (
            "I have to write about {topic} but my vocabulary is small. Which words should I know?",
            "Can you give me a list of possible subjects? My teacher only said it must be about {topic}.",
            "Before I begin my text on {topic}: what are useful linking words for giving an opinion?",
            "I do not know the right expressions for talking about {topic}. Some phrases with examples, please.",
            "What does the word 'consequence' mean? I would like to use it later when I write on {topic}.",
            "Which tense do people normally use in an essay about {topic}? I have not started.",
            "Please suggest a few ideas for an essay on {topic}. The page is still blank.",
            "I am looking for a writing task. Could you give me some prompts about {topic}?",
            "Tomorrow I start an essay on {topic}. What nouns and verbs belong to this topic?",
            "How do you spell the words that people use when they talk about {topic}? I need them for a new text.",
            "I need a topic for my homework, maybe something with {topic}. Any suggestions?",
            "Could you list phrases for comparing two things? I will need them when I begin.",
            "What is a synonym of 'advantage'? I am collecting words before I write about {topic}.",
            "Give me an example of a first sentence pattern, because I don't know how people open such a text.",
        ),
        (EMPTY,),
    ),
    ("pre", "yes"): (
        (
            "I need to argue about {topic} and cannot decide which side is stronger. What speaks for each side?",
            "How could I structure an essay that claims that {side}? I have not written a word so far.",
            "I want background on {topic} first: what are the causes, and why do people disagree?",
            "I think that {side}. Is that true? I would like to understand it before I start writing.",
            "Help me plan: which argument about {topic} should come first, and how do I answer critics?",
            "My task is to explain {topic}. I don't know where to begin. How do the parts of the problem depend on "
            "each other?",
            "Which evidence would I need to show that {side}? I am only preparing.",
            "I don't know much about {topic}. Can you explain the debate and the reasons behind it?",
            "Before writing, I want to test my opinion that {side}. What would somebody say against it?",
            "Let us brainstorm: why could {topic} be good for some people and bad for others?",
            "I am planning my essay. Which of these would be the better thesis: that {side}, or the opposite?",
            "Could you help me to analyse the question first? The task is: 'Discuss {topic}'. I have no text.",
            "What do experts say about {topic}, and whom should I believe? I will start writing next week.",
            "I must write a comparison about {topic}. Which points should I compare, and why these?",
        ),
        (EMPTY,),
    ),
    ("during", "no"): (
        (
            "I am in the middle of my paragraph on {topic}. Is it 'effect' or 'affect' here?",
            "Should I write 'has been' or 'was' in the second sentence I have now?",
            "What is another word for 'important'? I have used it three times in my draft so far.",
            "How long should this introduction be? I have just begun to write it.",
            "I am still writing. Do I need a comma before 'because'?",
            "Could you tell me whether the preposition in my first sentence is fine? More will follow.",
            "I'm halfway through the text about {topic}. Which linking word fits at the start of the next paragraph?",
            "I started writing about {topic}. How do I say that more politely?",
            "In the sentence that I just typed, should it be 'a' or 'the'?",
            "This is my first paragraph. Please tell me if the spelling is right, then I go on.",
            "Is my draft long enough already, or should the next part be longer?",
            "What is the past tense of 'seek'? I need it for the line I am writing.",
            "I'm working on my draft and I look for a stronger verb than 'make'.",
            "Can you translate 'moreover' for me? I want to put it between the two sentences I have.",
        ),
        (SHORT, SHORT, LONG),
    ),
    ("during", "yes"): (
        (
            "Here is my thesis: {side}. Is my argument clear, and what would make it stronger?",
            "I added an example to my first body paragraph. Does it really support the claim that {side}?",
            "I am working on the counterargument now. Is my rebuttal convincing?",
            "This is my outline so far: introduction, two reasons, an objection, conclusion. Does the order make "
            "sense?",
            "I wrote in my draft that {side}. Is that correct, or did I misunderstand something?",
            "I am not sure whether I am on the right track with {topic}. Does the second point follow from the first?",
            "My draft stops after the second reason. What is missing before I can conclude that {side}?",
            "Here is my draft so far. Do my reasons for saying that {side} hold?",
            "I am stuck after the introduction. Which idea should I develop next, and why?",
            "Please read my first paragraph on {topic} and tell me where a reader would not believe me.",
            "I have begun my draft. Does this comparison make sense, or is it unfair?",
            "Is the topic sentence of this paragraph supported by the rest of what I have written until now?",
            "I am still drafting and worry that I contradict myself. Do I?",
            "I revised the second paragraph. Is the cause that I give for {topic} the real one?",
        ),
        (SHORT, LONG),
    ),
    ("post", "no"): (
        (
            "My essay is finished. Please correct the grammar.",
            "I have completed the text on {topic}. Can you check spelling and commas?",
            "The final version is done; I only need a good title for it.",
            "All paragraphs are written. Which words do I repeat too often?",
            "I finished yesterday. Please list exercises for the kind of grammar mistakes that I make.",
            "Done! Are the capital letters right in the whole text?",
            "Here is the complete essay about {topic}. Could you make the sentence structures more varied?",
            "I handed in everything except the list of mistakes: please mark the wrong tenses in my finished text.",
            "My work is complete. Which of the words are too informal?",
            "Finished! Please check the punctuation from beginning to end.",
            "I am done with writing and want to improve my vocabulary. Which words in the text could be better?",
            "The whole essay on {topic} is there now. Are the articles correct?",
            "Please proofread my final draft.",
            "I wrote the last line today. Can you shorten the sentences that are too long?",
        ),
        (LONG, LONG, SHORT),
    ),
    ("post", "yes"): (
        (
            "This is my final essay. Please evaluate content, language and how convincing it is.",
            "I have finished. Does my conclusion really follow from what I wrote about {topic}?",
            "Looking back at the completed essay, what are its weakest arguments, and why?",
            "I want to reflect on my work: which of my reasons for saying that {side} would a critical reader attack?",
            "The essay is complete. Is everything in it true, and is the evidence good enough?",
            "Now that it is done, how well does the whole text prove that {side}?",
            "Please grade the finished text on {topic} and explain what kept it from a higher score.",
            "I completed my essay. Can you evaluate how I dealt with the other side?",
            "Now that I have finished, what did I do well and what should I do differently next time?",
            "Here is the final version. Does the whole argument hold together from the first line to the last?",
            "Please assess my finished essay on {topic} as a strict examiner would, with reasons.",
            "My text is done. Is my claim that {side} proven, or only repeated?",
            "I would like to reflect on the finished work: is its structure logical?",
            "Give me your overall judgement of this complete essay, and defend it.",
        ),
        (LONG, LONG, SHORT),
    ),
    ("none", "no"): (
        (
            "Hello, how are you today?",
            "Thank you, that helped a lot!",
            "How do I change the font size in this program?",
            "What is your name?",
            "Tell me a joke about {topic}, please.",
            "Good night, see you tomorrow.",
            "Can I use this website on my phone?",
            "Hi there!",
            "Where is the button to save my work?",
            "You are very kind.",
            "Which languages do you speak?",
            "What time is it in London now?",
            "Please stop talking.",
            "Sing a song about {topic} for me.",
        ),
        (EMPTY, SHORT, LONG),
    ),
    ("none", "yes"): (
        (
            "A shirt costs 24 dollars after a discount of 20 percent. What did it cost before?",
            "Should I buy a used bicycle or take the bus to school? Compare the two for me.",
            "Why does the moon look larger near the horizon?",
            "If all roses are flowers and some flowers fade, do some roses fade?",
            "My friend is angry with me since Monday. What could be the reasons and what should I do?",
            "How does a vaccine train the body? I am just curious.",
            "Which of these phones is better for me: a cheap one every year or an expensive one every four years?",
            "A train leaves at 9:40 and needs 135 minutes. When does it arrive?",
            "How can I decide between studying medicine and law?",
            "Why do leaves change their colour in autumn?",
            "Three friends share 50 euros so that one gets twice as much as each other one. How much does each get?",
            "My computer becomes slow in the afternoon and not in the morning. What could be the reason?",
            "Is it cheaper to cook at home or to eat in the canteen? Think it through for me.",
            "If it rains, the ground is wet. The ground is wet. Did it rain?",
        ),
        (EMPTY, SHORT, LONG),
    ),
}
"""(stage, reasoning) -> the messages, and what the editor holds in turn."""

TEMPLATES = tuple(
    Template(f"{stage}-{reasoning}-{number}", stage, reasoning, message, drafts)
    for (stage, reasoning), (messages, drafts) in CELLS.items()
    for number, message in enumerate(messages, start=1)
)

TOPICS = (
    ("school uniforms", "uniforms make pupils more equal"),
    ("working from home", "people work better at home"),
    ("zoos", "zoos protect animals that would die out"),
)
"""Topic, and a claim about it."""

SENTENCES = (
    "Nowadays many people speak about {topic}, and they have different opinion.",
    "In my opinion {side}, because I have seen it in my own town.",
    "First, we must look on the reasons why {topic} are so important for us.",
    "For example, my cousin had the same problem and he changed his mind after one year.",
    "On the other hand, some people says that this is only a question of money.",
    "I do not agree with them, since money is not all what counts.",
    "Second, the research shows that small changes can have a big affect.",
    "If everybody would think about it, the situation will be better for all.",
    "However, it is not easy to change what people have learned as a child.",
    "That is why schools and families should work together more often.",
    "Critics answer that the costs are high and that nobody want to pay them.",
    "But the costs of doing nothing are even higher, as the last years have shown.",
    "In conclusion, I believe that {side}, and that we have to start today.",
)
"""A learner's text on any of the topics, with a learner's mistakes."""
SIZES = {EMPTY: 0, SHORT: 4, LONG: len(SENTENCES)}
